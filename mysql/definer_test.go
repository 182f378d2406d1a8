package mysql

import (
	"database/sql"
	"net/url"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/internal/servers"
)

// The procedure and the view run with the rights of who has made them. Somebody who
// may make functions in their database, and whom they would call, does not get those
// rights.
func TestDefinersRights(t *testing.T) {
	target := servers.MySQL(t, nil).Database(t)
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	database := u.Path[1:]
	admin := connect(t, target, way{})
	do := func(db *sql.DB, q string) {
		t.Helper()
		if _, err := db.Exec(q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	if err := Migrate(t.Context(), admin, nil); err != nil {
		t.Fatal(err)
	}
	s := open(t, target, way{})
	token := hold(t, s, "orders/42", `{"holders":[{"session":"a","nr":1,"slots":1,"reason":"why"}]}`)

	name := "mallory_" + strings.TrimPrefix(database, "hf_")
	do(admin, `create user `+name+`@'%' identified by 'secret'`)
	t.Cleanup(func() { admin.Exec(`drop user ` + name + `@'%'`) })
	for _, g := range []string{`create routine, create temporary tables on ` + database + `.*`, `execute on procedure ` + database + `.holdfast_fence`} {
		do(admin, `grant `+g+` to `+name+`@'%'`)
	}
	u.User = url.UserPassword(name, "secret")
	mallory := connect(t, u.String(), way{conns: 1})
	made := 0
	for f, parameters := range map[string]string{
		"json_value": "a text, b text", "json_valid": "a text", "coalesce": "a text, b text", "greatest": "a text, b text", "left": "a text, b int",
		"concat": "a text, b text", "regexp_replace": "a text, b text, c text", "hex": "a text", "unhex": "a text", "version": "", "from_unixtime": "a int",
		"unix_timestamp": "a int", "ceiling": "a int", "least": "a int, b int", "nullif": "a int, b int", "max": "a int", "substr": "a text, b int", "now": "a int",
	} {
		if _, err := mallory.Exec("create function `" + f + "`(" + parameters + ") returns text deterministic sql security invoker begin signal sqlstate '45000' set message_text = 'mallory'; return ''; end"); err == nil {
			made++
		}
	}
	if made == 0 {
		t.Fatal("mallory may make no functions")
	}
	tx := begin(t, admin)
	if err := fences["SQL"](t.Context(), tx, "orders/42", token); err != nil {
		t.Errorf("the fence: %v", err)
	}
	tx.Rollback()
	var holder string
	if err := admin.QueryRow(`select concat(holder, name, reason) from holdfast_locks`).Scan(&holder); err != nil {
		t.Errorf("the view: %v", err)
	}

	// A user who may make temporary tables can put one in the place of ours, for that session alone:
	// no trigger keeps him from writing what is his to write.
	do(admin, `create table ledger (token bigint)`)
	do(admin, `create trigger ledger_fenced before insert on ledger for each row call holdfast_fence('orders/42', new.token)`)
	do(admin, `grant insert on `+database+`.ledger to `+name+`@'%'`)
	if _, err := mallory.Exec(`insert into ledger values (5)`); state(err) != "HF002" {
		t.Errorf("an insert with a wrong token: %v", err)
	}
	do(mallory, "create temporary table holdfast_records (id varbinary(256), version bigint, value mediumblob, fence bigint)")
	do(mallory, `insert into holdfast_records values (concat(x'00', 'orders/42'), 5, '{"holders":[{"session":"a","slots":1}]}', 0)`)
	if _, err := mallory.Exec(`insert into ledger values (5)`); err != nil {
		t.Errorf("with a table of his own: %v; then the documentation need not warn of it", err)
	}
	if _, err := admin.Exec(`insert into ledger values (5)`); state(err) != "HF002" {
		t.Errorf("for others: %v", err)
	}
}
