package postgres

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A place has a lock that is held, and an application's table of one row.
type place struct {
	reopener
	db    *pgxpool.Pool
	token int64
}

func newPlace(t *testing.T) place {
	t.Helper()
	r := fresh(t, nil)
	db := application(t, r)
	exec(t, db, `insert into orders (id) values (42)`)
	return place{r, db, hold(t, r, "a", `{"holders":[{"session":"a","nr":1,"slots":1,"ttl":15000}]}`)}
}

// fenced tells whether a takeover has to wait for a transaction.
func (p place) fenced(t *testing.T) bool {
	t.Helper()
	_, err := p.db.Exec(t.Context(), `select from holdfast_records where id = '\x0061' for update nowait`)
	if err != nil && state(err) != "55P03" {
		t.Fatal(err)
	}
	return err != nil
}

func (p place) paid(t *testing.T) (paid string) {
	t.Helper()
	if err := p.db.QueryRow(t.Context(), `select coalesce(paid, '') from orders where id = 42`).Scan(&paid); err != nil {
		t.Fatal(err)
	}
	return paid
}

// A fence is undone by what undoes everything else, and its error is an error: who
// rolls back to a savepoint and goes on has no fence. (The doc comment of Fence.)
func TestFenceBehindSavepoint(t *testing.T) {
	const pay = `update orders set paid = 'yes' where id = 42`
	for _, test := range []struct {
		name       string
		statements []string // @ is the token, ! begins one that fails
		fenced     bool     // before the commit
		paid       bool     // after it
	}{
		{"released", []string{pay, `savepoint s`, `select holdfast_fence('a', @)`, `release savepoint s`}, true, true},
		{"rolled back to", []string{pay, `savepoint s`, `select holdfast_fence('a', @)`, `rollback to s`}, false, true},
		{"before what was rolled back to", []string{pay, `select holdfast_fence('a', @)`, `savepoint s`, pay, `rollback to s`}, true, true},
		{"an error that was rolled back to", []string{pay, `savepoint s`, `!select holdfast_fence('a', 17)`, `rollback to s`}, false, true},
		{"an error", []string{pay, `!select holdfast_fence('a', 17)`}, false, false},
		{"in a block that catches", []string{`do $$ begin update orders set paid = 'yes'; begin perform holdfast_fence('a', @); exception when others then null; end; end $$`}, true, true},
		{"an error in a block that catches", []string{`do $$ begin update orders set paid = 'yes'; begin perform holdfast_fence('a', 17); exception when others then null; end; end $$`}, false, true},
		{"in a block that catches what came behind", []string{`do $$ begin update orders set paid = 'yes'; begin perform holdfast_fence('a', @); perform 1/0; exception when others then null; end; end $$`}, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newPlace(t)
			tx := begin(t, p.db)
			for _, q := range test.statements {
				q, fails := strings.CutPrefix(strings.ReplaceAll(q, "@", fmt.Sprint(p.token)), "!")
				if _, err := tx.Exec(t.Context(), q); (err != nil) != fails {
					t.Fatalf("%s: %v", q, err)
				}
			}
			if got := p.fenced(t); got != test.fenced {
				t.Errorf("fenced is %v, want %v", got, test.fenced)
			}
			tx.Commit(t.Context())
			if got := p.paid(t) == "yes"; got != test.paid {
				t.Errorf("paid is %v, want %v", got, test.paid)
			}
		})
	}
}

// Nested transactions of pgx are savepoints.
func TestFenceNested(t *testing.T) {
	for _, rolls := range []bool{false, true} {
		p := newPlace(t)
		ctx := t.Context()
		tx := begin(t, p.db)
		exec(t, tx, `update orders set paid = 'yes'`)
		inner, err := tx.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := fences["Fence"](ctx, inner, "a", p.token); err != nil {
			t.Fatal(err)
		}
		if rolls {
			err = inner.Rollback(ctx)
		} else {
			err = inner.Commit(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.fenced(t) == rolls {
			t.Errorf("the inner transaction was rolled back: %v; the outer one is fenced: %v", rolls, !rolls)
		}
		tx.Rollback(ctx)
	}
}

// Outside a transaction nothing stays locked. Where that is certain the fence fails.
func TestFenceWithoutTransaction(t *testing.T) {
	p := newPlace(t)
	ctx := t.Context()
	exec(t, p.db, `
create function pay(id integer, token bigint) returns void language plpgsql as $$ begin
  update orders o set paid = 'by a function' where o.id = $1;
  perform holdfast_fence('a', token);
end $$`)
	token := fmt.Sprint(p.token)
	psql := func(script string) error { // as psql speaks to the server
		c, err := p.db.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Release()
		_, err = c.Conn().PgConn().Exec(ctx, script).ReadAll()
		return err
	}
	for _, test := range []struct {
		script string
		fails  bool
	}{
		{`select holdfast_fence('a', ` + token + `)`, true},
		{` select  holdfast_fence('\x61'::bytea, ` + token + `) ; `, true},
		{`select holdfast_fence('a', 17)`, true},
		{`update orders set paid = 'x'; select holdfast_fence('a', ` + token + `)`, false},              // one transaction
		{`update orders set paid = 'x' where id = 1; select holdfast_fence('a', ` + token + `)`, false}, // of no row
		{`begin; select holdfast_fence('a', ` + token + `); update orders set paid = 'x'; commit`, false},
		{`with u as (update orders set paid = 'x' where id = 42 returning id) select holdfast_fence('a', ` + token + `) from u`, false},
		{`select pay(42, ` + token + `)`, false},
		{`select pay(1, ` + token + `)`, false}, // of no row
		{`do $$ begin perform pay(1, ` + token + `); end $$`, false},
	} {
		if err := psql(test.script); test.fails != (state(err) == stateNoTx) || !test.fails && err != nil {
			t.Errorf("%s: error %v, want one: %v", test.script, err, test.fails)
		}
	}
	for _, tx := range []string{`begin`, `begin isolation level serializable`, `begin; update orders set paid = 'x' where id = 1`} {
		c := foreign(t, p.reopener)
		exec(t, c, `rollback`)
		for _, q := range []string{tx, `select holdfast_fence('a', ` + token + `)`} {
			if _, err := c.PgConn().Exec(ctx, q).ReadAll(); err != nil {
				t.Errorf("%s: %s: %v", tx, q, err)
			}
		}
		if !p.fenced(t) {
			t.Errorf("%s: not fenced", tx)
		}
		c.Close(ctx)
	}
	// A caller that has ended the transaction by hand.
	tx := begin(t, p.db)
	exec(t, tx, `commit`)
	c := client(t, p.Store)
	l, err := c.Acquire(ctx, "b")
	if err != nil {
		t.Fatal(err)
	}
	if err := Fence(ctx, tx, l); err == nil || err.Error() != `fence "b": there is no transaction that could be fenced` {
		t.Errorf("Fence behind a commit: %v", err)
	}
	if err := l.Release(ctx); err != nil {
		t.Error(err)
	}
}

// A fenced transaction that is prepared keeps the lock until somebody ends it: the
// doctor says so, and who waits is not kept longer than by others.
func TestFencePrepared(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t, &servers.Options{Settings: []string{"max_prepared_transactions=5"}})
	if !server.Own {
		t.Skip("this needs a server of its own")
	}
	r := migrated(t, server.Database(t), nil)
	ctx := t.Context()
	token := hold(t, r, "a", `{"holders":[{"session":"a","nr":1,"slots":1,"ttl":900}]}`)
	c := foreign(t, r, `create table mine (a int)`, fmt.Sprintf(`select holdfast_fence('a', %d)`, token))
	reads := foreign(t, r, `select from holdfast_records`, `prepare transaction 'harmless'`)
	exec(t, c, `prepare transaction 'it''s in doubt'`)
	for _, line := range findings(t, r.Store) {
		if strings.Contains(line, "harmless") {
			t.Errorf("doctor says %s", line)
		}
	}
	says(t, r.Store, `slow prepared transactions: "it's in doubt" of holdfast `)
	// Each of them waits for a second, longer than the TTL.
	for range 2 {
		out, err := r.CompareAndSwap(ctx, []driver.Write{{Key: driver.Key{Name: "a"}, Old: token, Value: []byte("taken")}})
		if err != nil || out[0].Won {
			t.Fatalf("a takeover beside a prepared fence: %+v, error %v", out, err)
		}
	}
	exec(t, c, `commit prepared 'it''s in doubt'`)
	exec(t, reads, `rollback prepared 'harmless'`)
	if out, err := r.CompareAndSwap(ctx, []driver.Write{{Key: driver.Key{Name: "a"}, Old: token, Value: []byte("taken")}}); err != nil || !out[0].Won {
		t.Errorf("after it: %+v, error %v", out, err)
	}
	for _, line := range findings(t, r.Store) {
		if strings.Contains(line, "prepared") {
			t.Errorf("doctor says %s", line)
		}
	}
}

// A trigger as docs/stores/postgres.md shows calls our function, whatever the schema
// of the role that writes has in it.
func TestFenceTriggerOfStrangers(t *testing.T) {
	r := fresh(t, nil)
	ctx := t.Context()
	version := hold(t, r, "ledger", `{"holders":[{"session":"a","nr":1,"slots":1}]}`)
	page, err := os.ReadFile("../docs/stores/postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	_, trigger, _ := strings.Cut(string(page), "create table ledger")
	trigger, _, _ = strings.Cut(trigger, "```")
	if _, err := r.pool.Exec(ctx, "create table ledger"+trigger); err != nil {
		t.Fatal(err)
	}
	writer := as(t, r, "writer", `grant insert on ledger`, `grant execute on function holdfast_fence(text, bigint)`)
	own := writer.Config().ConnConfig.User // the first schema of the default search_path
	for _, q := range []string{
		`create schema ` + own + ` authorization ` + own,
		`create function ` + own + `.holdfast_fence(text, bigint) returns void language sql as ''`,
		`alter function ` + own + `.holdfast_fence(text, bigint) owner to ` + own,
	} {
		if _, err := r.pool.Exec(ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := writer.Exec(ctx, `insert into ledger values (1, $1)`, version); err != nil {
		t.Errorf("with the token that holds the lock: %v", err)
	}
	if _, err := writer.Exec(ctx, `insert into ledger values (1, $1)`, version-1); state(err) != stateLost {
		t.Errorf("with a function of the writer's own and an old token: error %v, want %s", err, stateLost)
	}
}
