package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/serve/access"
)

// A replica is a Handler with a client of its own.
type replica struct {
	t       *testing.T
	store   driver.Store
	client  *holdfast.Client
	handler *Handler
	log     *bytes.Buffer
}

func newReplica(t *testing.T, store driver.Store, opts *Options) *replica {
	t.Helper()
	client, err := holdfast.New(store, &holdfast.Options{RuntimeDir: "/dev/null", Owner: holdfast.Owner{Host: "web-1"}})
	if err != nil {
		t.Fatal(err)
	}
	if opts == nil {
		opts = &Options{}
	}
	r := &replica{t: t, store: store, client: client, log: new(bytes.Buffer)}
	opts.Logger = slog.New(slog.NewTextHandler(&synced{w: r.log}, nil))
	r.handler = New(client, opts)
	t.Cleanup(r.close)
	return r
}

func (r *replica) close() {
	r.handler.Close()
	r.client.Close()
}

type synced struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *synced) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// all may do everything.
var all = &access.Principal{Name: "ana", Verbs: access.Everything, Prefixes: []string{""}}

// An answer is what came of a request.
type answer struct {
	status int
	header http.Header
	text   string
	body   map[string]any
}

func (a *answer) get(name string) any { return a.body[name] }

func (a *answer) String() string { return fmt.Sprintf("%d %s", a.status, a.text) }

// do sends a request as somebody.
func (r *replica) do(p *access.Principal, method, path, body string) *answer {
	return r.doCtx(r.t.Context(), p, method, path, body)
}

func (r *replica) doCtx(ctx context.Context, p *access.Principal, method, path, body string) *answer {
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, r.request(ctx, p, method, path, body))
	return answered(r.t, w)
}

func (r *replica) request(ctx context.Context, p *access.Principal, method, path, body string) *http.Request {
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	if body == "" {
		req.Body = http.NoBody
	}
	if p != nil {
		ctx = access.WithPrincipal(ctx, p)
	}
	return req.WithContext(ctx)
}

func answered(t *testing.T, w *httptest.ResponseRecorder) *answer {
	t.Helper()
	a := &answer{status: w.Code, header: w.Header(), text: w.Body.String()}
	if strings.Contains(w.Header().Get("Content-Type"), "json") && !strings.Contains(w.Header().Get("Content-Type"), "ndjson") {
		if err := json.Unmarshal([]byte(a.text), &a.body); err != nil {
			t.Fatalf("%v in %s", err, a.text)
		}
	}
	return a
}

// want checks a status, and says what came instead.
func (a *answer) want(t *testing.T, status int) *answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("answered %v, want %d", a, status)
	}
	return a
}

// is checks a member.
func (a *answer) is(t *testing.T, name string, want any) *answer {
	t.Helper()
	if got := a.body[name]; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%s is %v, want %v, in %v", name, got, want, a)
	}
	return a
}

func (a *answer) token(t *testing.T) int64 {
	t.Helper()
	locks, _ := a.body["locks"].([]any)
	if len(locks) == 0 {
		t.Fatalf("no lock in %v", a)
	}
	return int64(locks[0].(map[string]any)["token"].(float64))
}

func id(n int) string { return fmt.Sprintf("%032x", n) }

// inTime runs a test with two replicas on one store, in time that does not pass by itself.
func inTime(t *testing.T, f func(t *testing.T, a, b *replica)) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		f(t, newReplica(t, store, nil), newReplica(t, store, nil))
	})
}

// A reader reads a stream, line by line.
type reader struct {
	lines  chan map[string]any
	cancel context.CancelFunc
	done   chan struct{}
	status chan int
}

// stream sends a request whose answer goes on.
func (r *replica) stream(p *access.Principal, method, path, accept, body string) *reader {
	ctx, cancel := context.WithCancel(r.t.Context())
	req := r.request(ctx, p, method, path, body)
	req.Header.Set("Accept", accept)
	in, out := io.Pipe()
	s := &reader{lines: make(chan map[string]any, 100), cancel: cancel, done: make(chan struct{}), status: make(chan int, 1)}
	go func() {
		defer close(s.lines)
		d := json.NewDecoder(in)
		for {
			var m map[string]any
			if d.Decode(&m) != nil {
				return
			}
			s.lines <- m
		}
	}()
	go func() {
		defer close(s.done)
		defer out.Close()
		r.handler.ServeHTTP(&piped{Writer: out, header: http.Header{}, status: s.status}, req)
	}()
	return s
}

type piped struct {
	io.Writer
	header http.Header
	status chan int
}

func (p *piped) Header() http.Header    { return p.header }
func (p *piped) WriteHeader(status int) { p.status <- status }
func (p *piped) Flush()                 {}

// event is the next event, which has to be of a kind.
func (s *reader) event(t *testing.T, want string) map[string]any {
	t.Helper()
	m, ok := <-s.lines
	if !ok || m["event"] != want {
		t.Fatalf("the stream said %v, want the event %q", m, want)
	}
	return m
}

// until skips events of one kind.
func (s *reader) until(t *testing.T, skip, want string) map[string]any {
	t.Helper()
	for m := range s.lines {
		if m["event"] == skip {
			continue
		}
		if m["event"] == want {
			return m
		}
		t.Fatalf("the stream said %v, want the event %q", m, want)
	}
	t.Fatalf("the stream ended, want the event %q", want)
	return nil
}

func newRecorder() *httptest.ResponseRecorder { return httptest.NewRecorder() }

// silent is a store that does not answer.
type silent struct {
	driver.Store
	quiet atomic.Bool
}

func (s *silent) pause(ctx context.Context) error {
	if !s.quiet.Load() {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s *silent) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	if err := s.pause(ctx); err != nil {
		return nil, err
	}
	return s.Store.Load(ctx, keys, how)
}

func (s *silent) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	if err := s.pause(ctx); err != nil {
		return nil, err
	}
	return s.Store.CompareAndSwap(ctx, writes)
}
