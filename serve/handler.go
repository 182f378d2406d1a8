package serve

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/monitor"
	"github.com/holdfast-lock/holdfast/serve/access"
)

// Options are the settings of a Handler. The zero value of each field is its default.
type Options struct {
	// Access finds out who a request comes from. nil: the caller of the Handler says so with
	// access.WithPrincipal.
	Access *access.List
	// Logger gets a line for each request, and warnings about breaks and changed settings. It
	// never gets a secret, a cookie or a body. nil: silence.
	Logger *slog.Logger
	// Doctor answers /v1/doctor. nil: there is no such path.
	Doctor func(context.Context) []driver.Finding
	// Redact removes secrets from an error of the store before it is logged; clients never see
	// the error. nil: driver.Redact.
	Redact func(error) string
	// Monitor has the numbers of the client, whose Trace feeds it. nil: /metrics has only those of
	// the server and the store.
	Monitor *monitor.Monitor
	// MetricsLock turns a lock's name into the label "lock", for what is in the store. nil: there
	// is no such label. It must have few values: each is a time series.
	MetricsLock func(name string) string
	// NoAPI leaves only metrics, health and the page.
	NoAPI bool
	// Page answers all paths that are not the API's. nil: they are not found.
	Page http.Handler
}

// A Handler is the API.
type Handler struct {
	client *holdfast.Client
	opts   Options
	log    *slog.Logger
	mux    *http.ServeMux
	inner  http.Handler // what comes after the log
	host   string
	limits limits
	ready  readiness

	timings timings
	keeping keeping
	census  census

	drain context.Context // ends when no request may wait any more
	stop  context.CancelFunc
	after sync.WaitGroup // work that goes on after requests
}

// New makes the API on a client. opts may be nil.
func New(client *holdfast.Client, opts *Options) *Handler {
	h := &Handler{client: client, mux: http.NewServeMux()}
	if opts != nil {
		h.opts = *opts
	}
	if h.log = h.opts.Logger; h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	h.host, _ = os.Hostname()
	h.drain, h.stop = context.WithCancel(context.Background())
	for _, rt := range h.routes() {
		h.mux.HandleFunc(rt.method+" "+rt.path, h.serve(rt))
	}
	h.inner = http.HandlerFunc(h.dispatch)
	if h.opts.Access != nil {
		h.inner = h.authenticate(h.inner)
	}
	return h
}

// A route is a method and a path. openapi.json describes each.
type route struct {
	method, path string
	verb         access.Verbs // 0: for everybody
	free         bool         // does not count toward the rate
	serve        http.HandlerFunc
}

func (h *Handler) routes() []route {
	routes := []route{
		{"PUT", "/v1/holds/{id}", access.Take, false, h.putHold},
		{"GET", "/v1/holds/{id}", access.Take, false, h.getHold},
		{"DELETE", "/v1/holds/{id}", access.Take, false, h.deleteHold},
		{"POST", "/v1/holds/{id}/beat", access.Take, false, h.beatHold},
		{"POST", "/v1/beats", access.Take, true, h.beatHolds},
		{"GET", "/v1/locks", access.Look, false, h.listLocks},
		{"GET", "/v1/locks/{name...}", access.Look, false, h.showLock},
		{"GET", "/v1/history/{name...}", access.Look, false, h.showHistory},
		{"GET", "/v1/sessions", access.Look, false, h.listSessions},
		{"GET", "/v1/state/{name...}", access.Look, false, h.showState},
		{"POST", "/v1/breaks", access.Break, false, h.breakLock},
		{"POST", "/v1/terraform/{name...}", access.Take, false, h.lockState},
		{"LOCK", "/v1/terraform/{name...}", access.Take, false, h.lockState},
		{"DELETE", "/v1/terraform/{name...}", access.Take, false, h.unlockState},
		{"UNLOCK", "/v1/terraform/{name...}", access.Take, false, h.unlockState},
		{"GET", "/v1/config/{key}", access.Look, false, h.getConfig},
		{"PUT", "/v1/config/{key}", access.Configure, false, h.putConfig},
		{"GET", "/metrics", access.Metrics, true, h.metrics},
		{"GET", "/healthz", 0, true, h.healthz},
		{"GET", "/readyz", 0, true, h.readyz},
		{"GET", "/openapi.json", 0, true, h.openapi},
		{"GET", "/problems/{type}", 0, true, h.showProblem},
	}
	if h.opts.Doctor != nil {
		routes = append(routes, route{"GET", "/v1/doctor", access.Look, false, h.doctor})
	}
	if h.opts.NoAPI {
		routes = slices.DeleteFunc(routes, func(rt route) bool { return strings.HasPrefix(rt.path, "/v1/") })
	}
	return routes
}

// serve adds to a route the checks that all have.
func (h *Handler) serve(rt route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n := noteOf(r)
		n.route = rt.path
		if rt.verb != 0 {
			p := access.PrincipalOf(r.Context())
			switch {
			case p == nil:
				n.problem = refuse(w, r, "unauthenticated", problemKinds["unauthenticated"].do)
				return
			case !p.Verbs.Has(rt.verb):
				n.problem = refuse(w, r, "forbidden", fmt.Sprintf("%s lacks the verb %v", p.Name, rt.verb))
				return
			case !rt.free && p.Limited() && !h.limits.request(p.Name, time.Now()):
				n.problem = refuse(w, r, "too-many", fmt.Sprintf("at most %d requests a second", ratePerSecond))
				return
			}
		}
		rt.serve(w, r)
	}
}

// authenticate puts the principal of a request into its context, for next. A request without proof
// goes on without a principal; one with a wrong secret is refused. A request that changes
// something is refused if a browser sent it for a page of another origin.
func (h *Handler) authenticate(next http.Handler) http.Handler {
	guard := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := guard.Check(r); err != nil {
			h.refuse(w, r, "forbidden", "a page of another origin may not ask for this: "+err.Error())
			return
		}
		p, err := h.opts.Access.Authenticate(r)
		if err != nil {
			h.refuse(w, r, "unauthenticated", err.Error())
			return
		}
		if p != nil {
			noteOf(r).principal = p.Name
			r = r.WithContext(access.WithPrincipal(r.Context(), p))
		}
		next.ServeHTTP(w, r)
	})
}

// Drain prepares for the end of a replica: requests that wait are answered, those that come from
// now on do not wait, and health says that the replica is not ready. Close must follow.
func (h *Handler) Drain() { h.stop() }

// Close waits for work that goes on after requests have ended.
func (h *Handler) Close() {
	h.stop()
	h.after.Wait()
}

// serves reports whether a path is the API's, and not the page's.
func serves(path string) bool {
	return strings.HasPrefix(path, "/v1/") || strings.HasPrefix(path, "/problems/") ||
		slices.Contains([]string{"/metrics", "/healthz", "/readyz", "/openapi.json", "/v1"}, path)
}

// ServeHTTP answers one request, logs it, and survives a fault of ours.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, r := withNote(r)
	begun := time.Now()
	rec := &recorder{ResponseWriter: w}
	if p := access.PrincipalOf(r.Context()); p != nil {
		n.principal = p.Name
	}
	defer func() {
		fault, torn := recover(), rec.begun
		if fault != nil && fault != http.ErrAbortHandler {
			id := newFault()
			h.log.Error("a fault of ours", "fault", id, "route", n.route, "panic", fmt.Sprint(fault), "stack", string(debug.Stack()))
			if n.problem = "fault"; rec.status == 0 {
				send(rec, r, problem("fault", "", members{"fault": id}))
			}
		}
		h.logRequest(r, rec.status, n, time.Since(begun))
		if fault == http.ErrAbortHandler || fault != nil && torn {
			panic(http.ErrAbortHandler) // an answer that is not whole must not look whole
		}
	}()
	if control := http.NewResponseController(rec); r.Body != nil && r.Body != http.NoBody {
		control.SetReadDeadline(begun.Add(bodyTimeout)) // until read takes it back
	}
	patient(rec)
	h.inner.ServeHTTP(rec, r)
}

// dispatch sends a request to the API or to the page.
func (h *Handler) dispatch(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	switch {
	case unclean(path):
		h.refuse(w, r, "bad-request", "encode the name: a path with //, /./ or /../ would be taken for another (%2F is a slash, %2E a dot)")
	case serves(path):
		h.api(w, r, noteOf(r))
	case h.opts.Page != nil:
		h.opts.Page.ServeHTTP(w, r)
	default:
		h.refuse(w, r, "not-found", "the API is at /v1; /openapi.json describes it")
	}
}

// api passes a request to the mux, and answers itself where nothing matches.
func (h *Handler) api(w http.ResponseWriter, r *http.Request, n *note) {
	if _, pattern := h.mux.Handler(r); pattern != "" {
		h.mux.ServeHTTP(w, r)
		return
	}
	var allowed []string
	for _, method := range []string{"GET", "PUT", "POST", "DELETE"} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := h.mux.Handler(other); pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) > 0 {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		n.problem = refuse(w, r, "method", "allowed here: "+strings.Join(allowed, ", "))
		return
	}
	n.problem = refuse(w, r, "not-found", "/openapi.json describes what is here")
}

// unclean reports whether http.ServeMux would change a path.
func unclean(escaped string) bool {
	if !strings.HasPrefix(escaped, "/") {
		return true
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(escaped[1:], "/"), "/") {
		if part == "." || part == ".." || part == "" && escaped != "/" {
			return true
		}
	}
	return false
}

// logRequest logs a request, but not who is waiting for what, nor anything secret.
func (h *Handler) logRequest(r *http.Request, status int, n *note, took time.Duration) {
	if status == 0 {
		status = 499 // the client had gone
	}
	h.timings.add(n.route, r.Method, status, took)
	attrs := []any{"method", r.Method, "route", n.route, "status", status, "took", took.Round(time.Microsecond)}
	for _, a := range []struct{ key, value string }{{"problem", n.problem}, {"principal", n.principal}, {"hold", n.hold}, {"remote", r.RemoteAddr}} {
		if a.value != "" && a.value != "@" {
			attrs = append(attrs, a.key, a.value)
		}
	}
	h.log.Info("request", attrs...)
}

// A note is what is remembered of a request for its line in the log.
type note struct{ route, problem, principal, hold string }

type noteKey struct{}

// withNote gives a request a note, if it has none.
func withNote(r *http.Request) (*note, *http.Request) {
	if n, ok := r.Context().Value(noteKey{}).(*note); ok {
		return n, r
	}
	n := new(note)
	return n, r.WithContext(context.WithValue(r.Context(), noteKey{}, n))
}

func noteOf(r *http.Request) *note {
	if n, ok := r.Context().Value(noteKey{}).(*note); ok {
		return n
	}
	return new(note)
}

// A recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter
	status int
	begun  bool // the body was begun
}

func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	r.begun = true
	return r.ResponseWriter.Write(p)
}

func newFault() string {
	var b [4]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// body reads the JSON body of a request. If it cannot be read, the request has been answered.
func (h *Handler) body(w http.ResponseWriter, r *http.Request) (body []byte, ok bool) {
	if !h.acceptable(r) {
		h.refuse(w, r, "media-type", "the body has to be application/json, not "+r.Header.Get("Content-Type"))
		return nil, false
	}
	control := http.NewResponseController(w)
	control.SetReadDeadline(time.Now().Add(bodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil { // else the rest is not waited for
		control.SetReadDeadline(time.Time{})
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		h.refuse(w, r, "too-large", fmt.Sprintf("at most %d bytes", maxBody))
		return nil, false
	case err != nil:
		h.refuse(w, r, "bad-request", "the body did not arrive: "+err.Error())
		return nil, false
	}
	return body, true
}

// read decodes the body of a request into v. If it cannot, it has answered.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, v any, optional bool) bool {
	body, ok := h.body(w, r)
	switch {
	case !ok:
		return false
	case optional && len(body) == 0:
		return true
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = errors.New("more follows the object")
		}
	}
	if err != nil {
		h.refuse(w, r, "bad-request", said(err))
		return false
	}
	return true
}

// said is an error of the JSON decoder, without Go's words.
func said(err error) string {
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf(`the body is not JSON, an object as in {"name":"nightly"}: %v`, err)
	case errors.As(err, &kind) && kind.Field != "" && kind.Type.Kind() == reflect.Float64:
		return fmt.Sprintf("%s: a number of seconds, as in 600, not a %s", kind.Field, kind.Value)
	case errors.As(err, &kind) && kind.Field != "":
		return fmt.Sprintf("%s: a %s is not what belongs there", kind.Field, kind.Value)
	case errors.As(err, &kind):
		return fmt.Sprintf("a %s is not what belongs there: the body is one object", kind.Value)
	case errors.Is(err, io.EOF):
		return "there is no body"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "the body ends too early"
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// acceptable reports whether a body is declared to be JSON, or not declared. What curl declares by
// default will do, too. A browser that was recognised by its cookie has to declare JSON.
func (h *Handler) acceptable(r *http.Request) bool {
	declared := r.Header.Get("Content-Type")
	kind, _, err := mime.ParseMediaType(declared)
	switch {
	case err == nil && kind == "application/json":
		return true
	case access.PrincipalOf(r.Context()) != nil && access.PrincipalOf(r.Context()).ByCookie():
		return false
	}
	return declared == "" || err == nil && kind == "application/x-www-form-urlencoded"
}

// refuse calls the function refuse, and notes the problem.
func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, kind, detail string) {
	noteOf(r).problem = refuse(w, r, kind, detail)
}

// fail answers with the problem for an error of the library.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	h.sendNoted(w, r, h.problemOf(r, err))
}

func (h *Handler) sendNoted(w http.ResponseWriter, r *http.Request, p members) {
	noteOf(r).problem = strings.TrimPrefix(p["type"].(string), "/problems/")
	send(w, r, p)
}

// problemOf returns the problem for an error of the library. It counts the holds that lapsed.
func (h *Handler) problemOf(r *http.Request, err error) members {
	var held *holdfast.HeldError
	var over *holdfast.OverError
	var other *holdfast.OtherHoldError
	var bad *holdfast.RequestError
	switch {
	case errors.As(err, &bad):
		return problem("bad-request", bad.Error(), members{"field": bad.Field})
	case errors.As(err, &other) && other.Field == "client":
		return problem("forbidden", "the hold belongs to another principal; only break ends it", nil)
	case errors.As(err, &other):
		return problem("other-hold", other.Error(), nil)
	case errors.As(err, &over):
		if over.Why == holdfast.HoldDied {
			h.keeping.died.Add(1)
		}
		return problem("over", over.Reason, overMembers(over))
	case errors.As(err, &held):
		return h.heldProblem(r, held)
	case errors.Is(err, holdfast.ErrReadOnly):
		return problem("forbidden", "this server may only look", nil)
	}
	id := newFault()
	h.log.Warn("the store did not answer", "fault", id, "route", noteOf(r).route, "err", h.redact(err))
	detail := "the store did not answer; send the same request again"
	if errors.Is(err, holdfast.ErrClosed) {
		detail = "this replica ends; send the same request again"
	}
	return problem("unknown-outcome", detail, members{"fault": id})
}

func (h *Handler) redact(err error) string {
	if h.opts.Redact != nil {
		return h.opts.Redact(err)
	}
	return driver.Redact(err.Error())
}
