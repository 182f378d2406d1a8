// Package clients runs the clients of other languages against real servers: one that loses, doubles
// and delays by a script of cases which all languages run, and replicas that are killed.
package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/serve"
	"github.com/holdfast-lock/holdfast/serve/access"
)

// A step is what a runner of cases asks of the test.
type step struct {
	Fault *fault `json:"fault"`
	Clear bool   `json:"clear"`
	Cut   bool   `json:"cut"`     // connections of those who wait
	Quiet bool   `json:"silence"` // nothing more comes on them
	Take  string `json:"take"`
	Later string `json:"take later"`
	Not   string `json:"not yet"` // has not been granted what it takes later
	Break string `json:"break"`
	Why   string `json:"reason"`
	Let   string `json:"release"`
	All   bool   `json:"release all"`
	Often int    `json:"refused"` // so many requests with 429, and none again within refusedFor
	Want  *struct {
		Name             string
		Holders, Waiters int
		Labels           map[string]string // of the first holder; nil: whatever they are
	} `json:"expect"`
}

// A fault is what happens to the next requests.
type fault struct {
	Method  string  `json:"method"` // "": any
	Kind    string  `json:"kind"`
	Seconds float64 `json:"seconds"`
	Times   int     `json:"times"`
}

// A badServer is a real server behind a proxy that does what it is asked to.
type badServer struct {
	t       *testing.T
	proxy   *httptest.Server
	control *httptest.Server
	good    *httptest.Server
	client  *holdfast.Client // of somebody else

	mu      sync.Mutex
	faults  []*fault
	refused int                  // requests with 429
	rushed  string               // one that came again too soon
	since   map[string]time.Time // when one was refused, by method
	streams map[*stream]bool
	waits   chan struct{} // closed when a stream begins, and made anew
	held    map[string]*holdfast.Lock
	later   map[string]context.CancelFunc
}

// A stream is the answer to somebody who waits.
type stream struct {
	cut   context.CancelFunc
	quiet bool // guarded by badServer.mu
}

func newBadServer(t *testing.T) *badServer {
	store := memory.New()
	newClient := func(host string) *holdfast.Client {
		c, err := holdfast.New(store, &holdfast.Options{RuntimeDir: os.DevNull, TTL: 4 * time.Second, Owner: holdfast.Owner{Host: host}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	b := &badServer{t: t, client: newClient("other"), streams: map[*stream]bool{}, waits: make(chan struct{}), since: map[string]time.Time{}, held: map[string]*holdfast.Lock{}, later: map[string]context.CancelFunc{}}
	api := serve.New(newClient("server"), nil)
	b.good = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		p := &access.Principal{Name: "tester", Verbs: access.Take | access.Look, Prefixes: []string{"t/", "nightly"}}
		api.ServeHTTP(w, r.WithContext(access.WithPrincipal(r.Context(), p)))
	}))
	b.proxy = httptest.NewServer(http.HandlerFunc(b.pass))
	b.control = httptest.NewServer(http.HandlerFunc(b.do))
	t.Cleanup(func() {
		for _, s := range []*httptest.Server{b.proxy, b.good, b.control} {
			s.CloseClientConnections()
			s.Close()
		}
	})
	return b
}

// refusedFor is for how long a client leaves a server alone that has answered 429, at least.
const refusedFor = 400 * time.Millisecond

// next is what happens to a request.
func (b *badServer) next(method string) *fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	if t, ok := b.since[method]; ok && time.Since(t) < refusedFor {
		b.rushed = fmt.Sprintf("a %s again %v after it was refused with 429", method, time.Since(t))
	}
	delete(b.since, method)
	for _, f := range b.faults {
		if f.Times > 0 && (f.Method == "" || f.Method == method) {
			f.Times--
			if f.Kind == "429" {
				b.refused++
				b.since[method] = time.Now()
			}
			return f
		}
	}
	return &fault{}
}

// pass hands a request on.
func (b *badServer) pass(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	f := b.next(r.Method)
	switch f.Kind {
	case "lose request":
		panic(http.ErrAbortHandler)
	case "503":
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case "page": // as of a proxy that wants a login
		io.WriteString(w, "<html>")
		return
	case "429":
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	case "double":
		if answer, err := b.forward(context.WithoutCancel(r.Context()), r, body); err == nil {
			io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
		}
	case "again later":
		again := r.Clone(context.WithoutCancel(r.Context()))
		time.AfterFunc(time.Second, func() {
			if answer, err := b.forward(again.Context(), again, body); err == nil {
				answer.Body.Close()
			}
		})
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	answer, err := b.forward(ctx, r, body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer answer.Body.Close()
	switch f.Kind {
	case "lose answer":
		io.Copy(io.Discard, answer.Body)
		panic(http.ErrAbortHandler)
	case "late":
		time.Sleep(time.Duration(f.Seconds * float64(time.Second)))
	}
	for k, v := range answer.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(answer.StatusCode)
	if answer.Header.Get("Content-Type") != "application/x-ndjson" {
		io.Copy(w, answer.Body)
		return
	}
	s := &stream{cut: cancel}
	b.mu.Lock()
	b.streams[s] = true
	close(b.waits)
	b.waits = make(chan struct{})
	b.mu.Unlock()
	defer func() { b.mu.Lock(); delete(b.streams, s); b.mu.Unlock() }()
	buf := make([]byte, 4096)
	for {
		n, err := answer.Body.Read(buf)
		b.mu.Lock()
		quiet := s.quiet
		b.mu.Unlock()
		if !quiet && n > 0 {
			w.Write(buf[:n])
			http.NewResponseController(w).Flush()
		}
		if err != nil {
			if ctx.Err() != nil && r.Context().Err() == nil {
				panic(http.ErrAbortHandler)
			}
			return
		}
	}
}

func (b *badServer) forward(ctx context.Context, r *http.Request, body []byte) (*http.Response, error) {
	u, err := url.Parse(b.good.URL + r.URL.RequestURI())
	if err != nil {
		return nil, err
	}
	q := r.Clone(ctx)
	q.URL, q.Host, q.RequestURI, q.Body = u, "", "", io.NopCloser(bytes.NewReader(body))
	return http.DefaultTransport.RoundTrip(q)
}

// do does a step of the runner.
func (b *badServer) do(w http.ResponseWriter, r *http.Request) {
	var s step
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := b.step(r.Context(), s); err != nil {
		http.Error(w, err.Error(), http.StatusExpectationFailed)
	}
}

func (b *badServer) step(ctx context.Context, s step) error {
	switch {
	case s.Clear:
		b.mu.Lock()
		b.faults = nil
		b.mu.Unlock()
		if s.All {
			b.letAll()
		}
	case s.Fault != nil:
		b.mu.Lock()
		b.faults = append(b.faults, s.Fault)
		b.mu.Unlock()
	case s.Often > 0:
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.rushed != "" || b.refused != s.Often {
			return fmt.Errorf("%d requests were refused with 429, want %d; %s", b.refused, s.Often, b.rushed)
		}
	case s.Cut || s.Quiet:
		return b.silence(ctx, s.Cut)
	case s.Take != "":
		l, err := b.client.TryAcquire(ctx, s.Take)
		if err != nil {
			return err
		}
		b.keep(l)
	case s.Later != "":
		ctx, cancel := context.WithCancel(context.Background())
		b.mu.Lock()
		b.later[s.Later] = cancel
		b.mu.Unlock()
		go func() {
			if l, err := b.client.Acquire(ctx, s.Later); err == nil {
				b.keep(l)
			}
		}()
	case s.Not != "":
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.held[s.Not] != nil {
			return fmt.Errorf("somebody else holds %q already", s.Not)
		}
	case s.Let != "":
		b.mu.Lock()
		l := b.held[s.Let]
		delete(b.held, s.Let)
		b.mu.Unlock()
		return l.Release(ctx)
	case s.Break != "":
		info, err := b.client.Show(ctx, s.Break)
		if err != nil || len(info.Holders) != 1 {
			return fmt.Errorf("%v, %v", info, err)
		}
		go b.client.Break(context.WithoutCancel(ctx), s.Break, info.Holders[0].Token, s.Why)
	case s.Want != nil:
		err := b.expect(ctx, s.Want.Name, s.Want.Holders, s.Want.Waiters)
		if err != nil || s.Want.Labels == nil {
			return err
		}
		info, err := b.client.Show(ctx, s.Want.Name)
		if err != nil {
			return err
		}
		if got := info.Holders[0].Labels; !maps.Equal(got, s.Want.Labels) {
			return fmt.Errorf("the labels of the lock are %v, want %v", got, s.Want.Labels)
		}
	}
	return nil
}

// silence holds back what streams say from now on, or cuts them off. It awaits one: a claim is in the store before
// the first line of the answer has come this far.
func (b *badServer) silence(ctx context.Context, cut bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.streams) == 0 {
		waits := b.waits
		b.mu.Unlock()
		select {
		case <-waits:
		case <-ctx.Done():
		}
		b.mu.Lock()
		if ctx.Err() != nil {
			return fmt.Errorf("nobody waits by a stream: %w", ctx.Err())
		}
	}
	for one := range b.streams {
		if one.quiet = true; cut {
			one.cut()
		}
	}
	return nil
}

func (b *badServer) keep(l *holdfast.Lock) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held[l.Name()] = l
}

func (b *badServer) letAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, cancel := range b.later {
		cancel()
		delete(b.later, name)
	}
	for name, l := range b.held {
		go l.Release(context.Background())
		delete(b.held, name)
	}
}

// expect waits until so many hold a name and wait for it.
func (b *badServer) expect(ctx context.Context, name string, holders, waiters int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var last holdfast.Info
	for info, err := range b.client.Watch(ctx, name) {
		if err != nil {
			return err
		}
		if last = info; len(info.Holders) == holders && len(info.Waiters) == waiters {
			return nil
		}
	}
	return fmt.Errorf("%q has %d holders and %d waiters, want %d and %d", name, len(last.Holders), len(last.Waiters), holders, waiters)
}

// results reads what a runner of cases has printed.
func results(t *testing.T, out []byte, err error) {
	t.Helper()
	ok := 0
	for line := range strings.Lines(string(out)) {
		switch {
		case strings.HasPrefix(line, "ok "):
			ok++
		default:
			t.Error(strings.TrimSpace(line))
		}
	}
	if err != nil || ok == 0 {
		t.Errorf("%d cases passed: %v", ok, err)
	}
	t.Logf("%d cases passed", ok)
}
