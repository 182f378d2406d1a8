package mysql

import (
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// While the server looks for a write, others may alter and lock the tables, and the store writes on
// other connections.
func TestAwaitLocksNothing(t *testing.T) {
	t.Parallel()
	h := fresh(t, way{})
	held := hold(t, h, "a", "1")
	type read struct {
		driver.Record
		err error
	}
	answer := make(chan read, 1)
	go func() {
		r, err := h.Await(t.Context(), name("a"), held, 2*time.Millisecond, time.Minute)
		answer <- read{r, err}
	}()
	conn, err := connect(t, h.url, way{}).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for sleeps := 0; sleeps == 0; {
		err := conn.QueryRowContext(t.Context(), `select count(*) from information_schema.processlist where state = 'User sleep' and db = database()`).Scan(&sleeps)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-answer:
			t.Fatalf("Await returned %+v, and nothing was written", got)
		default:
		}
	}
	for _, statement := range []string{
		`set session lock_wait_timeout = 5`,
		`alter table holdfast_records comment = 'altered'`,
		`lock tables holdfast_records write`,
		`unlock tables`,
	} {
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	}
	outs, err := h.CompareAndSwap(t.Context(), []driver.Write{{Key: name("a"), Old: held, Value: []byte("2")}})
	if err != nil || !outs[0].Won {
		t.Fatal(outs, err)
	}
	if got := <-answer; got.err != nil || got.Version != outs[0].Record.Version || string(got.Value) != "2" {
		t.Errorf("%+v, want version %d", got, outs[0].Record.Version)
	}
}

// A pool of few connections has none to spare for that, and MySQL cannot do it.
func TestWhoAwaits(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		way  way
		want bool
	}{
		{"as many connections as there are", way{}, true},
		{"four connections", way{conns: 4}, true},
		{"three connections", way{conns: 3}, false},
		{"two connections", way{conns: 2}, false},
		{"as on MySQL", ways["as on MySQL"], false},
	} {
		if got := fresh(t, test.way).Traits().Awaits; got != test.want {
			t.Errorf("%s: awaits: %v", test.name, got)
		}
	}
}
