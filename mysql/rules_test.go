package mysql

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
)

// rowAhead makes a row whose version is an hour ahead of the clock, as after the
// clock has gone back.
func rowAhead(t *testing.T, h handle, n, value string) int64 {
	t.Helper()
	version := time.Now().Add(time.Hour).UnixMicro()
	if _, err := connect(t, h.url, way{}).Exec(`insert into holdfast_records (id, version, value) values (?, ?, ?)`, sqlstore.ID(name("%s", n)), version, value); err != nil {
		t.Fatal(err)
	}
	return version
}

// Versions grow where the clock has gone back.
func TestVersionsOutrunTheClock(t *testing.T) {
	h := fresh(t, way{})
	for _, test := range []struct {
		name, holds string
		write       driver.Write // Old 1: what is there
	}{
		{"take", "", driver.Write{Old: driver.IfEmpty, Value: []byte("2")}},
		{"follow", "1", driver.Write{Old: 1, Value: []byte("2")}},
		{"free", "1", driver.Write{Old: 1}},
	} {
		for n := range 2 {
			w := test.write
			w.Key.Name = fmt.Sprintf("%s %d", test.name, n)
			version := rowAhead(t, h, w.Key.Name, test.holds)
			if w.Old == 1 {
				w.Old = version
			}
			batch := []driver.Write{w, {Key: name("%s'", w.Key.Name), Old: driver.IfEmpty}}[:n+1]
			if out, err := h.CompareAndSwap(t.Context(), batch); err != nil || !out[0].Won || out[0].Record.Version <= version {
				t.Errorf("%s in a call of %d: %+v, error %v, want a version above %d", test.name, n+1, out, err, version)
			}
		}
	}
}

// So they do where the store remembers the row.
func TestVersionsOfWhatIsRemembered(t *testing.T) {
	h := fresh(t, way{})
	take := []driver.Write{{Key: name("a"), Old: driver.IfEmpty}}
	if out, err := h.CompareAndSwap(t.Context(), take); err != nil || !out[0].Won {
		t.Fatalf("%+v, error %v", out, err)
	}
	version := time.Now().Add(time.Hour).UnixMicro()
	if _, err := connect(t, h.url, way{}).Exec(`update holdfast_records set version = ?`, version); err != nil {
		t.Fatal(err)
	}
	if out, err := h.CompareAndSwap(t.Context(), take); err != nil || !out[0].Won || out[0].Record.Version <= version {
		t.Errorf("%+v, error %v, want a version above %d", out, err, version)
	}
}

// What is removed has raised the floor, which never falls; and what was written
// since it was found is not removed.
func TestRemoveKeepsTheFloor(t *testing.T) {
	h := fresh(t, way{})
	find := func(n string, version int64) []sqlstore.Row {
		return []sqlstore.Row{{ID: sqlstore.ID(name("%s", n)), Version: version}}
	}
	remove := func(what string, rows []sqlstore.Row, want int) {
		t.Helper()
		if n, err := h.Names.Remove(t.Context(), rows); err != nil || n != want {
			t.Errorf("%s: %d rows removed, error %v, want %d", what, n, err, want)
		}
	}
	high := rowAhead(t, h, "a", "")
	low := hold(t, h, "b", "") // an hour below, though the floor does not know yet
	remove("a row", find("a", high), 1)
	remove("a lower one", find("b", low), 1)
	var floor int64
	if err := connect(t, h.url, way{}).QueryRow("select value from holdfast_meta where `key` = 'floor'").Scan(&floor); err != nil || floor != high {
		t.Errorf("the floor is %d, error %v, after a row of version %d was removed", floor, err, high)
	}
	version := hold(t, h, "c", "")
	again := rowAhead(t, h, "d", "")
	remove("one that was written since", find("c", version-1), 0)
	remove("one that is held again", append(find("d", again), find("e", hold(t, h, "e", "held"))...), 1)
	if got, err := h.Load(t.Context(), []driver.Key{name("c"), name("e")}, driver.Fresh); err != nil || got[0].Version != version || string(got[1].Value) != "held" {
		t.Errorf("they are %+v, error %v", got, err)
	}
}

// No row goes before the floor has risen.
func TestFloorRisesFirst(t *testing.T) {
	h := fresh(t, way{})
	version := hold(t, h, "a", "")
	tx := begin(t, connect(t, h.url, way{}))
	var floor int64
	if err := tx.QueryRow("select value from holdfast_meta where `key` = 'floor' lock in share mode").Scan(&floor); err != nil {
		t.Fatal(err)
	}
	n, err := h.Names.Remove(t.Context(), []sqlstore.Row{{ID: sqlstore.ID(name("a")), Version: version}})
	if n != 0 || h.Names.Means(err) != sqlstore.Locked {
		t.Errorf("while the floor cannot rise %d rows are removed, error %v", n, err)
	}
	if got, err := h.Load(t.Context(), []driver.Key{name("a")}, driver.Fresh); err != nil || got[0].Version != version {
		t.Errorf("the row is %+v, error %v", got, err)
	}
}

// waiting waits until a statement waits for a lock.
func waiting(t *testing.T, db *sql.DB) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		var status string
		var n int
		if err := db.QueryRow(`show global status like 'Innodb_row_lock_current_waits'`).Scan(&status, &n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("nobody waits for a lock")
		}
	}
}

// All batches lock rows in one order, of rows that are there and of new ones.
func TestBatchLocksInOrder(t *testing.T) {
	h := fresh(t, way{})
	db := connect(t, h.url, way{})
	for _, q := range []string{
		`create table seen (nr integer primary key auto_increment, id varbinary(256))`,
		`create trigger look before insert on holdfast_records for each row insert into seen (id) values (new.id)`,
	} {
		if _, err := db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		var batch []driver.Write
		for _, n := range []string{"c", "a", "e", "b", "d"} {
			batch = append(batch, driver.Write{Key: name("%s", n), Old: driver.IfEmpty})
		}
		if out, err := h.CompareAndSwap(t.Context(), batch); err != nil || !out[0].Won {
			t.Fatalf("%+v, error %v", out, err)
		}
		var order string
		if err := db.QueryRow(`select group_concat(convert(substr(id, 2) using utf8mb4) order by nr separator '') from seen`).Scan(&order); err != nil || order != "abcde" {
			t.Errorf("rows were locked in the order %q, error %v", order, err)
		}
		if _, err := db.Exec(`delete from seen`); err != nil {
			t.Fatal(err)
		}
	}
}

// A row that a batch has left for a name that was swept was never written: who
// takes the name, also by what it remembers of it, starts above the floor.
func TestTakeOfWhatWasSwept(t *testing.T) {
	h := fresh(t, way{})
	ctx := t.Context()
	k := name("a")
	take := []driver.Write{{Key: k, Old: driver.IfEmpty}}
	if out, err := h.CompareAndSwap(ctx, take); err != nil || !out[0].Won {
		t.Fatalf("%+v, error %v", out, err)
	}
	high := time.Now().Add(time.Hour).UnixMicro()
	if _, err := connect(t, h.url, way{}).Exec(`update holdfast_records set version = ?`, high); err != nil {
		t.Fatal(err)
	}
	if n, err := h.Names.Remove(ctx, []sqlstore.Row{{ID: sqlstore.ID(k), Version: high}}); err != nil || n != 1 {
		t.Fatalf("%d rows removed, error %v", n, err)
	}
	out, err := h.CompareAndSwap(ctx, []driver.Write{{Key: k, Old: high}, {Key: name("b"), Old: driver.IfEmpty}})
	if err != nil || out[0].Won || out[0].Record.Version != 0 {
		t.Fatalf("a write that follows what was swept: %+v, error %v", out, err)
	}
	if out, err := h.CompareAndSwap(ctx, take); err != nil || !out[0].Won || out[0].Record.Version <= high {
		t.Errorf("%+v, error %v, want a version above %d", out, err, high)
	}
}

// Nobody takes over what a reader has fenced.
func TestSharedFenceHolds(t *testing.T) {
	h := fresh(t, way{})
	token := hold(t, h, "a", `{"holders":[{"session":"a","nr":1,"slots":0}]}`)
	tx := begin(t, connect(t, h.url, way{}))
	if err := fences["SQL"](t.Context(), tx, "a", token); err != nil {
		t.Fatal(err)
	}
	out, err := h.CompareAndSwap(t.Context(), []driver.Write{{Key: name("a"), Old: token, Value: []byte("{}")}})
	if err != nil || out[0].Won {
		t.Errorf("a takeover behind an open fence: %+v, error %v", out, err)
	}
}

// A fence that found readers, and waited until the lock was exclusive, has it as
// locked as if it had found it so.
func TestFenceChangesHands(t *testing.T) {
	h := fresh(t, way{})
	ctx := t.Context()
	db := connect(t, h.url, way{dsn: "tx_isolation=%27READ-COMMITTED%27"})
	version := hold(t, h, "a", `{"holders":[{"session":"a","nr":1,"slots":0}]}`)
	takeover := begin(t, db)
	if _, err := takeover.Exec(`
update holdfast_records set version = version + 1, value = '{"holders":[{"session":"b","nr":1,"slots":1}]}' where id = ?`, sqlstore.ID(name("a"))); err != nil {
		t.Fatal(err)
	}
	tx := begin(t, db)
	said := make(chan error, 1)
	go func() { said <- fences["SQL"](ctx, tx, "a", version+1) }()
	waiting(t, db)
	if err := takeover.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-said; err != nil {
		t.Fatal(err)
	}
	other := begin(t, db)
	if _, err := other.Exec(`select version from holdfast_records where id = ? lock in share mode nowait`, sqlstore.ID(name("a"))); code(err) != "1205" {
		t.Errorf("a reader beside an exclusive fence: %v, want that the row is locked", err)
	}
}

// Of a batch, too, a write that names another version than the row's loses.
func TestBatchComparesVersions(t *testing.T) {
	h := fresh(t, way{})
	old := hold(t, h, "a", "1")
	version := hold(t, h, "a", "2")
	for _, stale := range []int64{old, version + 1, version - 1, 1} {
		out, err := h.CompareAndSwap(t.Context(), []driver.Write{{Key: name("a"), Old: stale, Value: []byte("3")}, {Key: name("b"), Old: driver.IfEmpty}})
		if err != nil || out[0].Won || out[0].Record.Version != version || !out[1].Won {
			t.Errorf("version %d of a row that has %d: %+v, error %v", stale, version, out, err)
		}
	}
}

// A batch on MySQL, which is a transaction, leaves no row locked when it fails.
func TestFailedBatchLocksNothing(t *testing.T) {
	h := fresh(t, ways["as on MySQL"])
	version := hold(t, h, "b", "")
	tx := begin(t, connect(t, h.url, way{}))
	if err := tx.QueryRow(`select version from holdfast_records where id = ? for update`, sqlstore.ID(name("b"))).Scan(&version); err != nil {
		t.Fatal(err)
	}
	out, err := h.CompareAndSwap(t.Context(), []driver.Write{{Key: name("a"), Old: driver.IfEmpty}, {Key: name("b"), Old: version}, {Key: name("c"), Old: driver.IfEmpty}})
	if err != nil || !out[0].Won || out[1].Won || !out[2].Won {
		t.Errorf("%+v, error %v, want the second to lose", out, err)
	}
	db := connect(t, h.url, way{})
	for _, n := range []string{"a", "c"} {
		if err := db.QueryRow(`select version from holdfast_records where id = ? for update nowait`, sqlstore.ID(name("%s", n))).Scan(&version); err != nil {
			t.Errorf("the row of %s: %v; want it to be there, and not locked", n, err)
		}
	}
}
