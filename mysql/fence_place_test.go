package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// takeover is a write that takes a lock from who holds it with a token.
func takeover(name string, token int64) []driver.Write {
	return []driver.Write{{Key: driver.Key{Name: name}, Old: token, Value: []byte(`{"holders":[{"session":"b","nr":1,"slots":1}]}`)}}
}

// What a fence does where it does not stand last in a transaction of its own: as the
// documentation of Fence has it.
func TestFencePlaces(t *testing.T) {
	h := fresh(t, way{})
	admin := application(t, h, "")
	for _, q := range []string{
		`create procedure careless(in token bigint) begin
			declare continue handler for sqlexception begin end;
			insert into orders (paid) values ('careless');
			call holdfast_fence('a', token);
		end`,
		`create trigger orders_fenced before update on orders for each row call holdfast_fence('a', new.paid)`,
		`insert into orders (id, paid) values (1, 'no')`,
	} {
		if _, err := admin.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name  string
		what  []string // the fence with the right token is +, with a wrong one -
		state string   // of the last that fails
		holds bool     // nobody can take the lock over meanwhile
		after string   // and then
	}{
		{name: "last in a transaction", what: []string{"begin", "+"}, holds: true, after: "commit"},
		{name: "by itself", what: []string{"+"}, state: "HF004"},
		{name: "by itself, with a wrong token", what: []string{"-"}, state: "HF002"},
		{name: "behind a statement that commits", what: []string{"begin", "create table more (n int)", "+"}, state: "HF004"},
		{name: "before a statement that commits", what: []string{"begin", "+"}, holds: true, after: "drop table more"},
		{name: "where the session does not commit", what: []string{"set autocommit = 0", "+"}, holds: true, after: "commit"},
		{name: "in a trigger", what: []string{"update orders set paid = + where id = 1"}},
		{name: "in a trigger in a transaction", what: []string{"begin", "update orders set paid = + where id = 1"}, holds: true, after: "commit"},
		{name: "behind a savepoint that is gone back to", what: []string{"begin", "savepoint s", "+", "rollback to s"}, after: "commit"},
		{name: "behind one that comes after a write", what: []string{"begin", "insert into orders (paid) values ('y')", "savepoint s", "+", "rollback to s"}, holds: true, after: "commit"},
		{name: "a failure, behind a savepoint", what: []string{"begin", "insert into orders (paid) values ('x')", "savepoint s", "-", "rollback to s"}, state: "HF002", holds: true, after: "commit"},
		{name: "a failure that a handler swallows", what: []string{"begin", "call careless(5)"}, holds: true, after: "commit"},
		{name: "in XA", what: []string{"xa start 'x'", "+", "xa end 'x'", "xa prepare 'x'"}, holds: true, after: "xa commit 'x'"},
	} {
		version := hold(t, h, "a", `{"holders":[{"session":"a","nr":1,"slots":1}]}`)
		conn, err := admin.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, q := range test.what {
			if err := step(t.Context(), conn, q, version); err != nil {
				if got = state(err); got == "" {
					t.Fatalf("%s: %s: %v", test.name, q, err)
				}
			}
		}
		if got != test.state {
			t.Errorf("%s: SQLSTATE %q, want %q", test.name, got, test.state)
		}
		taken := func() bool {
			out, err := h.CompareAndSwap(t.Context(), takeover("a", version))
			if err != nil {
				t.Fatal(err)
			}
			return out[0].Won
		}
		if test.holds == taken() {
			t.Errorf("%s: that nobody can take the lock over in the transaction is %v", test.name, !test.holds)
		}
		if test.after != "" {
			if err := step(t.Context(), conn, test.after, version); err != nil {
				t.Errorf("%s: %s: %v", test.name, test.after, err)
			}
		}
		if test.holds && !taken() {
			t.Errorf("%s: nobody can take the lock over after it", test.name)
		}
		if _, err := conn.ExecContext(t.Context(), "set autocommit = 1"); err != nil {
			t.Error(err)
		}
		conn.Close()
	}
	// A failed fence ends no transaction: what was not rolled back is there.
	var n int
	if err := admin.QueryRow(`select count(*) from orders where paid in ('x', 'careless')`).Scan(&n); err != nil || n != 2 {
		t.Errorf("%d orders of those who went on to the commit, error %v, want 2", n, err)
	}
}

// step is a statement, in which + is a token, or that is the fence with it; - is the
// fence with a wrong one.
func step(ctx context.Context, conn *sql.Conn, q string, token int64) error {
	switch q {
	case "+":
		q = "call holdfast_fence('a', +)"
	case "-":
		q = "call holdfast_fence('a', +)"
		token--
	}
	_, err := conn.ExecContext(ctx, strings.ReplaceAll(q, "+", fmt.Sprint(token)))
	return err
}

// In Go a transaction that a statement in it has ended is not fenced, and that is said.
func TestFenceBehindItsCommit(t *testing.T) {
	h := fresh(t, way{})
	db := application(t, h, "")
	c, err := holdfast.New(h, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	tx := begin(t, db)
	if _, err := tx.Exec(`create table more (n int)`); err != nil {
		t.Fatal(err)
	}
	want := `fence "a": the transaction has ended already: a statement in it commits by itself, as those that change tables do`
	if err := Fence(t.Context(), tx, l); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
