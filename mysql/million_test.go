package mysql

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// With a million names a lock costs what it costs with none, and so does a look
// at the next of them.
func TestMillion(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	empty, full := fresh(t, way{change: ways["as on MySQL"].change}), fresh(t, way{change: ways["as on MySQL"].change})
	db := connect(t, full.url, way{})
	_, err := db.Exec(`
insert into holdfast_records (id, version, value)
select concat(x'00', 'name ', seq), 1700000000000000 + seq, if(seq % 2 = 0, '{"holders":[{"session":"x","slots":1}]}', '')
from seq_1_to_1000000`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`do (select count(*) from holdfast_records)`); err != nil { // purge, and into memory
		t.Fatal(err)
	}
	ctx := t.Context()
	lock := func(s handle) time.Duration {
		began := time.Now()
		writes := []driver.Write{{Key: name("name 500001"), Old: driver.IfEmpty, Value: []byte("x")}}
		out, err := s.CompareAndSwap(ctx, writes)
		if err == nil {
			out, err = s.CompareAndSwap(ctx, []driver.Write{{Key: writes[0].Key, Old: out[0].Record.Version}})
		}
		if err != nil || !out[0].Won {
			t.Fatalf("%+v, error %v", out, err)
		}
		return time.Since(began)
	}
	batch := func(s handle) time.Duration {
		began := time.Now()
		var writes []driver.Write
		for i := range 20 {
			writes = append(writes, driver.Write{Key: name("name %d", 300001+2*i), Old: driver.IfEmpty, Value: []byte("x")})
		}
		out, err := s.CompareAndSwap(ctx, writes)
		if err == nil {
			for i, o := range out {
				writes[i].Old, writes[i].Value = o.Record.Version, nil
			}
			out, err = s.CompareAndSwap(ctx, writes)
		}
		if err != nil || !out[0].Won || !out[19].Won {
			t.Fatalf("%+v, error %v", out, err)
		}
		return time.Since(began)
	}
	load := func(s handle) time.Duration {
		began := time.Now()
		if _, err := s.Load(ctx, []driver.Key{name("name 7"), name("name 700000"), name("none")}, driver.Fresh); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	keys := func(s handle) time.Duration {
		began := time.Now()
		if _, err := s.Keys(ctx, driver.Names, "name 5", 100); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	for what, f := range map[string]func(handle) time.Duration{"a lock": lock, "a batch": batch, "a load": load, "keys": keys} {
		var took [2][]time.Duration
		for range 101 {
			for i, s := range []handle{empty, full} {
				took[i] = append(took[i], f(s))
			}
		}
		for i := range took {
			slices.Sort(took[i])
		}
		few, many := took[0][50], took[1][50]
		t.Logf("%s: %v with no names, %v with a million: %.2fx", what, few, many, float64(many)/float64(few))
		if many > few*3/2+500*time.Microsecond {
			t.Errorf("%s takes %v with no names, and %v with a million", what, few, many)
		}
	}
	began := time.Now()
	n, err := full.Sweep(ctx, time.Hour)
	if err != nil || n < 499_900 {
		t.Errorf("%d swept, error %v", n, err)
	}
	t.Logf("%d rows swept in %v", n, time.Since(began))
	var name string
	if err := db.QueryRow(`select name from holdfast_locks where name = 'name 4'`).Scan(&name); err != nil {
		t.Error(err)
	}
}
