package servers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// echo is a server that repeats each line, and a proxy before it. What it has
// received goes to heard, and "EOF" when a connection ends.
func echo(t *testing.T) (p *Proxy, heard chan string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { ln.Close() })
	heard = make(chan string, 100)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					heard <- lines.Text()
					fmt.Fprintln(c, lines.Text())
				}
				heard <- "EOF"
			}()
		}
	}()
	p, err = NewProxy(t.Context(), ln.Addr().String())
	must(t, err)
	t.Cleanup(p.Close)
	return p, heard
}

// A client of echo.
type client struct {
	*testing.T
	net.Conn
}

func dial(t *testing.T, p *Proxy) client {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return client{t, c}
}

func (c client) send(line string) {
	c.Helper()
	_, err := fmt.Fprintln(c, line)
	must(c, err)
}

// want says what the client reads next: a line, "silence" or "reset".
func (c client) want(want string) {
	c.Helper()
	timeout := 10 * time.Second
	if want == "silence" {
		timeout = 50 * time.Millisecond
	}
	must(c, c.SetReadDeadline(time.Now().Add(timeout)))
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	got := strings.TrimSpace(string(buf[:n]))
	var op *net.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		got = "silence"
	case errors.As(err, &op):
		got = "reset"
	case err != nil:
		got = err.Error()
	}
	if got != want {
		c.Fatalf("the client got %q, want %q", got, want)
	}
}

func (c client) ping(line string) {
	c.Helper()
	c.send(line)
	c.want(line)
}

func hears(t *testing.T, heard chan string, want string) {
	t.Helper()
	select {
	case got := <-heard:
		if got != want {
			t.Fatalf("the server got %q, want %q", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("the server got nothing, want %q", want)
	}
}

func TestCut(t *testing.T) {
	p, _ := echo(t)
	a := dial(t, p)
	a.ping("one")
	p.Cut()
	a.want("reset")
	dial(t, p).ping("two")
	p.Refuse(true)
	if b, err := net.Dial("tcp", p.Addr()); err == nil { // or reset meanwhile
		client{t, b}.want("reset")
		b.Close()
	}
	p.Refuse(false)
	dial(t, p).ping("three")
}

func TestStallAndDelay(t *testing.T) {
	p, _ := echo(t)
	a := dial(t, p)
	a.ping("one")
	p.Stall(true)
	a.send("two")
	a.want("silence")
	b := dial(t, p)
	b.send("new")
	b.want("silence")
	p.Stall(false)
	a.want("two")
	b.want("new")
	p.Delay(60 * time.Millisecond)
	began := time.Now()
	a.ping("three")
	if d := time.Since(began); d < 120*time.Millisecond {
		t.Errorf("a round trip with 60 ms each way took %v", d)
	}
}

func TestBlackhole(t *testing.T) {
	p, heard := echo(t)
	idle, a, b := dial(t, p), dial(t, p), dial(t, p)
	for _, c := range []client{idle, a, b} {
		c.ping("hello")
		hears(t, heard, "hello")
	}
	p.Blackhole(true, false)
	a.send("lost")
	a.want("silence")
	p.Blackhole(false, true)
	b.send("heard")
	hears(t, heard, "heard")
	b.want("silence")
	a.send("after a gap")
	p.Blackhole(true, true)
	idle.Close() // not even that is seen
	late := dial(t, p)
	late.send("late")
	late.want("silence")
	if len(heard) > 0 {
		t.Fatalf("the server got %q through the partition", <-heard)
	}
	p.Blackhole(false, false)
	a.want("reset")
	b.want("reset")
	late.want("late")
}

func TestCutOnReply(t *testing.T) {
	p, heard := echo(t)
	p.CutOnReply(func(reply []byte) bool { return bytes.Contains(reply, []byte("two")) }, 1)
	a := dial(t, p)
	a.ping("one")
	a.send("two")
	a.want("reset")
	for _, want := range []string{"one", "two", "EOF"} {
		hears(t, heard, want)
	}
	dial(t, p).ping("two")
	if got := p.Cuts(); got != 1 {
		t.Errorf("got %d cuts, want 1", got)
	}
}

// A write whose reply is lost was applied; one that the server refused has its
// refusal passed on.
func TestCutAfter(t *testing.T) {
	for _, kind := range []struct {
		name   string
		server func(testing.TB, *Options) *Server
	}{{"PostgreSQL", Postgres}, {"MySQL", MySQL}} {
		t.Run(kind.name, func(t *testing.T) {
			s := kind.server(t, nil)
			db := s.Database(t)
			u, err := url.Parse(db)
			must(t, err)
			p, err := NewProxy(t.Context(), u.Host)
			must(t, err)
			t.Cleanup(p.Close)
			by := WithHostPort(db, p.Addr())
			rows, cuts := 0, 0
			try := func(sql string, cut, applied bool) {
				t.Helper()
				_, err := query(t.Context(), by, sql)
				if (err != nil) != (cut || !applied) {
					t.Errorf("%q: got %v; cut: %v, applied: %v", sql, err, cut, applied)
				}
				if cut {
					cuts++
				}
				if applied {
					rows++
				}
				got, err := query(t.Context(), db, "SELECT count(*) FROM t")
				must(t, err)
				if got != fmt.Sprint(rows) || p.Cuts() != cuts {
					t.Fatalf("%q: %s rows after %d cuts, want %d rows after %d", sql, got, p.Cuts(), rows, cuts)
				}
			}
			_, err = query(t.Context(), by, "CREATE TABLE t (k INT PRIMARY KEY)")
			must(t, err)
			p.CutAfter("VALUES (2)", 1)
			try("INSERT INTO t VALUES (1)", false, true)
			try("INSERT INTO t VALUES (2)", true, true)
			p.CutAfter("INTO t", 1)
			try("INSERT INTO t VALUES (2)", false, false) // a duplicate
			try("INSERT INTO t VALUES (3)", true, true)
			p.CutAfterCommit(2)
			try("INSERT INTO t SELECT 4", true, true)
			try("BEGIN; INSERT INTO t SELECT 5; COMMIT", true, true)
			try("INSERT INTO t SELECT 6", false, true)
			p.CutAfter("", 1)
			try("INSERT INTO t VALUES (7)", true, true)
		})
	}
}

// The same with statements that were prepared, by PostgreSQL's own benchmark.
func TestCutAfterPrepared(t *testing.T) {
	pgbench := beside(find("postgres"), "pgbench")
	if pgbench == "" {
		t.Skip(missing("pgbench", "postgresql-15"))
	}
	s := Postgres(t, nil)
	if !s.Own {
		t.Skip("the server is not ours")
	}
	p, err := NewProxy(t.Context(), s.addr())
	must(t, err)
	t.Cleanup(p.Close)
	for _, mode := range []string{"simple", "extended", "prepared"} {
		for _, after := range []func(){func() { p.CutAfterCommit(1) }, func() { p.CutAfter("END", 1) }} {
			u, err := url.Parse(s.Database(t))
			must(t, err)
			_, err = query(t.Context(), u.String(), "CREATE TABLE t (k INT)")
			must(t, err)
			script := filepath.Join(t.TempDir(), "script")
			must(t, os.WriteFile(script, []byte("BEGIN;\nINSERT INTO t VALUES (1);\nEND;\n"), 0o600))
			_, port, _ := strings.Cut(p.Addr(), ":")
			cuts := p.Cuts()
			after()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			tool := &Server{Dir: "/", env: append(os.Environ(), "PGSSLMODE=disable")}
			_, err = tool.run(ctx, pgbench, "-n", "-M", mode, "-t", "3", "-f", script,
				"-h", "127.0.0.1", "-p", port, "-U", "holdfast", strings.TrimPrefix(u.Path, "/"))
			if err == nil {
				t.Errorf("%s: pgbench has not noticed the cut", mode)
			}
			got, err := query(t.Context(), u.String(), "SELECT count(*) FROM t")
			must(t, err)
			if got != "1" || p.Cuts() != cuts+1 {
				t.Errorf("%s: %s rows and %d cuts, want one of each", mode, got, p.Cuts()-cuts)
			}
		}
	}
}

// The SQL of MySQL's prepared statements, as its protocol has it.
func TestWireMySQL(t *testing.T) {
	packet := func(seq byte, body string) []byte {
		return append([]byte{byte(len(body)), byte(len(body) >> 8), 0, seq}, body...)
	}
	var w wire
	w.reply(packet(0, "\x0a10.11.0-MariaDB"))
	w.request(packet(1, "login"))
	insert := "INSERT INTO t VALUES (" + strings.Repeat("?,", 300) + "?)"
	w.request(packet(0, "\x16"+insert))
	w.reply(packet(1, "\x00\x07\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00"))
	execute := packet(0, "\x17\x07\x00\x00\x00\x00\x01\x00\x00\x00")
	for _, c := range []struct {
		name  string
		chunk []byte
		sql   string
		runs  bool
	}{
		{"ping", packet(0, "\x0e"), "", false},
		{"execute", execute, insert, true},
		{"half of it", execute[:7], "", false},
		{"the rest", execute[7:], insert, true},
		{"close, query", append(packet(0, "\x19\x07\x00\x00\x00"), packet(0, "\x03COMMIT")...), "COMMIT", true},
	} {
		if sql, runs := w.request(c.chunk); sql != c.sql || runs != c.runs {
			t.Errorf("%s: got %q, %v; want %q, %v", c.name, sql, runs, c.sql, c.runs)
		}
	}
	for _, c := range []struct {
		name, reply           string
		whole, applied, ended bool
	}{
		{"OK", "\x00\x01\xfc\x10\x27\x02\x00\x00\x00", true, true, true},
		{"OK in a transaction", "\x00\x01\x00\x03\x00\x00\x00", true, true, false},
		{"the end of rows in a transaction", "\xfe\x00\x00\x03\x00", true, true, false},
		{"error", "\xff\x26\x04#23000Duplicate", true, false, true},
	} {
		b := packet(1, c.reply)
		if whole, applied, ended := w.verdict(b); whole != c.whole || applied != c.applied || applied && ended != c.ended {
			t.Errorf("%s: got %v %v %v, want %v %v %v", c.name, whole, applied, ended, c.whole, c.applied, c.ended)
		}
		if whole, _, _ := w.verdict(b[:len(b)-1]); whole {
			t.Errorf("%s: not all of it is there", c.name)
		}
	}
}
