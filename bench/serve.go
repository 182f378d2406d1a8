package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/serve"
	"github.com/holdfast-lock/holdfast/serve/access"
)

// served takes locks over HTTP, through the unix socket of a server in this process, beside the
// library, beside requests that do nothing, and beside the gateway of etcd where that runs.
func served(b *bench) ([]Row, error) {
	return b.eachStore("serve", func(ss []*system) (rows []Row, err error) {
		for _, s := range ss {
			some, err := overHTTP(b, s)
			if err != nil {
				return nil, err
			}
			rows = append(rows, some...)
		}
		return rows, nil
	})
}

// A caller sends requests to a server.
type caller struct {
	http *http.Client
	ctx  context.Context
	base string
}

// do sends a request, which has to be answered with a status.
func (c *caller) do(method, path string, body any, status int) error {
	_, err := c.ask(method, path, body, status)
	return err
}

// ask is do that returns the answer.
func (c *caller) ask(method, path string, body any, status int) (answer []byte, err error) {
	answer, got, err := c.send(method, path, body)
	if err == nil && got != status {
		err = fmt.Errorf("%s %s: %d %s", method, path, got, answer)
	}
	return answer, err
}

// send sends a request, and returns the answer and its status.
func (c *caller) send(method, path string, body any) (answer []byte, status int, err error) {
	var text []byte
	if body != nil {
		text, _ = json.Marshal(body)
	}
	req, err := http.NewRequestWithContext(c.ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return nil, 0, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	return answer, resp.StatusCode, err
}

// gatewayPair takes and gives back a lock through the JSON gateway of etcd, which needs a lease, as
// a hold over HTTP has its own.
func (c *caller) gatewayPair(name string) error {
	var lease struct{ ID string }
	var lock struct{ Key []byte }
	for _, step := range []struct {
		path string
		body func() any
		into any
	}{
		{"/v3/lease/grant", func() any { return map[string]any{"TTL": 15} }, &lease},
		{"/v3/lock/lock", func() any { return map[string]any{"name": []byte(name), "lease": lease.ID} }, &lock},
		{"/v3/lock/unlock", func() any { return map[string]any{"key": lock.Key} }, &struct{}{}},
	} {
		answer, err := c.ask("POST", step.path, step.body(), 200)
		if err == nil {
			err = json.Unmarshal(answer, step.into)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func holdPath() string {
	var id [16]byte
	rand.Read(id[:])
	return "/v1/holds/" + hex.EncodeToString(id[:])
}

func (c *caller) pair(name string) error {
	path := holdPath()
	if err := c.do("PUT", path, map[string]any{"name": name}, 200); err != nil {
		return err
	}
	return c.do("DELETE", path, nil, 204)
}

// startServer serves a client on a unix socket until shut.
func startServer(b *bench, l locker) (c *caller, shut func(err *error), err error) {
	client, ok := l.(*client)
	if !ok {
		return nil, nil, fmt.Errorf("%T is no client", l)
	}
	list, err := access.Open("", nil)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		return nil, nil, err
	}
	server, err := serve.NewServer(serve.New(client.Client, &serve.Options{Access: list}), serve.Listen{Socket: filepath.Join(dir, "s")})
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	ctx, stop := context.WithCancel(b.ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, time.Second) }()
	c = &caller{ctx: b.ctx, base: "http://holdfast", http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", server.Socket())
	}}}}
	return c, func(err *error) {
		c.http.CloseIdleConnections()
		stop()
		*err = errors.Join(*err, <-ended, os.RemoveAll(dir))
	}, nil
}

func overHTTP(b *bench, s *system) (rows []Row, err error) {
	lockers, shut, err := b.open([]*system{s}, func(*system) options { return options{} })
	if err != nil {
		return nil, err
	}
	defer shut(&err)
	c, end, err := startServer(b, lockers[0])
	if err != nil {
		return nil, err
	}
	defer end(&err)
	n, crowd, line, holds, length := 50, 64, 2000, 1000, 2*time.Second
	if b.quick {
		n, crowd, line, holds, length = 10, 8, 100, 100, 200*time.Millisecond
	}
	empty := func() error {
		return errors.Join(c.do("GET", "/healthz", nil, 200), c.do("GET", "/healthz", nil, 200))
	}
	runs := []run{
		{name: "library", round: func() (series, error) { return timed(n, func() error { return pair(b.ctx, lockers[0], "nightly") }) }},
		{name: "two empty requests", round: func() (series, error) { return timed(n, empty) }},
		{name: "HTTP", round: func() (series, error) { return timed(n, func() error { return c.pair("nightly") }) }},
	}
	if len(b.site.Etcd) > 0 {
		gateway := &caller{ctx: b.ctx, base: "http://" + strings.TrimPrefix(b.site.Etcd[0], "http://"), http: &http.Client{Transport: &http.Transport{}}}
		defer gateway.http.CloseIdleConnections()
		runs = append(runs, run{name: "etcd's gateway", round: func() (series, error) { return timed(n, func() error { return gateway.gatewayPair("nightly") }) }})
	}
	taken, err := b.take(b.rounds, true, runs)
	if err != nil {
		return nil, err
	}
	library, nothing, over := taken[0], taken[1], taken[2]
	rows = append(rows, library.row(s.row("a free lock, by the library"), "ms", 1e3), nothing.row(s.row("two requests that do nothing"), "ms", 1e3))
	row := over.row(s.row("a free lock, over HTTP"), "ms", 1e3)
	row.Ratio, row.Of = over.ratio(library), "the library"
	rest := (over.median() - library.median() - nothing.median()) * 1e3
	rows = append(rows, row.notes("%.2f ms more than both together", rest))
	if len(taken) > 3 {
		row := taken[3].row(s.row("a free lock: lease, lock, unlock"), "ms", 1e3)
		row.System = "etcd's gateway"
		rows = append(rows, row)
	}

	fast, err := b.take(b.few(), true, []run{{name: "HTTP", round: func() (series, error) {
		return rate(crowd, length, func(i int) error { return c.pair(fmt.Sprint("name", i)) })
	}}})
	if err != nil {
		return nil, err
	}
	row = fast[0].row(s.row(fmt.Sprintf("%d at a time, a name each, over HTTP", crowd)), "/s", 1)
	if s.store == "postgres" && !b.quick {
		row = row.aims("≥ 4,000/s", row.Median >= 4000)
	}
	rows = append(rows, row)

	hands, err := b.take(b.few(), true, []run{{name: "HTTP", round: func() (series, error) { return c.handOvers(n / 5) }}})
	if err != nil {
		return nil, err
	}
	rows = append(rows, hands[0].row(s.row("from a DELETE sent to the next one's PUT answered"), "ms", 1e3))
	behind, err := c.crowd(line, n)
	if err != nil {
		return nil, err
	}
	row = rounds{behind}.row(s.row(fmt.Sprintf("the same, %d stand in line", line)), "ms", 1e3)
	if !b.quick {
		row = row.aims("≤ 20 ms", row.Median <= 20)
	}
	rows = append(rows, row)
	kept, err := c.beats(holds, b.few())
	if err != nil {
		return nil, err
	}
	return append(rows, rounds{kept}.row(s.row(fmt.Sprintf("POST /v1/beats for %d holds", holds)), "ms", 1e3)), nil
}

// handOvers hands a lock to and fro between two clients.
func (c *caller) handOvers(n int) (s series, err error) {
	holder := holdPath()
	if err := c.do("PUT", holder, map[string]any{"name": "hand"}, 200); err != nil {
		return nil, err
	}
	for range n {
		next, got := holdPath(), make(chan error, 1)
		var at time.Time
		go func() {
			err := c.do("PUT", next, map[string]any{"name": "hand", "wait": 30}, 200)
			at = time.Now()
			got <- err
		}()
		time.Sleep(20 * time.Millisecond) // it stands in line
		begun := time.Now()
		if err := errors.Join(c.do("DELETE", holder, nil, 204), <-got); err != nil {
			return nil, err
		}
		s = append(s, at.Sub(begun).Seconds())
		holder = next
	}
	return s, c.do("DELETE", holder, nil, 204)
}

// crowd hands a lock on n times while so many clients wait for it, each by a request.
func (c *caller) crowd(line, n int) (s series, err error) {
	type answer struct {
		path string
		at   time.Time
		err  error
	}
	answers := make(chan answer, line)
	holder := holdPath()
	if err := c.do("PUT", holder, map[string]any{"name": "crowd"}, 200); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(c.ctx)
	var waiting sync.WaitGroup
	defer func() {
		cancel()
		waiting.Wait()
	}()
	waits := &caller{ctx: ctx, base: c.base, http: c.http}
	for range line {
		waiting.Go(func() {
			path := holdPath()
			for ctx.Err() == nil {
				// 202: it has waited for three TTLs, and is to ask again.
				_, status, err := waits.send("PUT", path, map[string]any{"name": "crowd", "wait": 3600})
				if err != nil || status != http.StatusAccepted {
					if err == nil && status != http.StatusOK {
						err = fmt.Errorf("PUT %s: %d", path, status)
					}
					answers <- answer{path, time.Now(), err}
					return
				}
			}
		})
	}
	for queued := 0; queued < line; time.Sleep(50 * time.Millisecond) {
		var info struct{ Waiters []json.RawMessage }
		text, err := c.ask("GET", "/v1/locks/crowd", nil, 200)
		if err == nil {
			err = json.Unmarshal(text, &info)
		}
		if err != nil {
			return nil, err
		}
		queued = len(info.Waiters)
	}
	for range n {
		time.Sleep(20 * time.Millisecond)
		begun := time.Now()
		if err := c.do("DELETE", holder, nil, 204); err != nil {
			return nil, err
		}
		next := <-answers
		if next.err != nil {
			return nil, next.err
		}
		s = append(s, next.at.Sub(begun).Seconds())
		holder = next.path
	}
	return s, c.do("DELETE", holder, nil, 204)
}

// beats keeps many holds.
func (c *caller) beats(holds, times int) (s series, err error) {
	var ids []string
	for i := range holds {
		path := holdPath()
		if err := c.do("PUT", path, map[string]any{"name": fmt.Sprint("kept", i)}, 200); err != nil {
			return nil, err
		}
		ids = append(ids, filepath.Base(path))
	}
	for chunk := range slices.Chunk(ids, 1000) {
		some, err := timed(times, func() error { return c.do("POST", "/v1/beats", map[string]any{"ids": chunk}, 200) })
		if err != nil {
			return nil, err
		}
		s = append(s, some...)
	}
	for _, id := range ids {
		if err := c.do("DELETE", "/v1/holds/"+id, nil, 204); err != nil {
			return nil, err
		}
	}
	return s, nil
}
