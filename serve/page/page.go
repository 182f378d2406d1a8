// Package page is the web page of holdfast serve: who holds which lock, who waits, on which hosts,
// and the history. A Go program can mount it beside its own handlers:
//
//	http.Handle("/locks/", page.New(client, &page.Options{Prefix: "/locks"}))
//
// Everything can be read without script. The script adds rows that update themselves, keys, and the
// dialog that asks before a lock is broken. Nothing inline and nothing from elsewhere is loaded:
// the content security policy that ServeHTTP sets allows this handler's own files alone. All text
// that others have written is escaped, including characters that reorder or hide text.
package page

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// Options are the settings of a page. The zero value of each field is its default.
type Options struct {
	// Prefix is the path under which the page is mounted, such as "/locks". "": the root.
	Prefix string
	// Store is shown in the head of each page: the URL of the store, without its password.
	Store string
	// Fence is the statement of the store's fence, with :name and :token, as driver.Kind.FenceSQL
	// returns it. The page of a lock shows it for its holder. "": there is none.
	Fence string
	// Viewer says who asks, from a request that the caller has let in. nil: every viewer is
	// unnamed, and may look at everything and change nothing.
	Viewer func(*http.Request) Viewer
	// Login checks the key that a page asks of a viewer whose Denied is set. If the key is right,
	// it answers the request itself. nil: such a viewer gets 403.
	Login func(w http.ResponseWriter, r *http.Request, key string) (ok bool)
	// Logout ends the viewer's session and answers the request. nil: there is no such button.
	Logout func(w http.ResponseWriter, r *http.Request)
	// Doctor returns findings about the store and this process. nil: there is no such page.
	Doctor func(context.Context) []driver.Finding
	// Redact turns an error of the store into what viewers may read. nil: the error as it is.
	Redact func(error) string
	// Logger gets breaks and changed settings (Warn) and errors. nil: silence.
	Logger *slog.Logger
}

// A Viewer is a person who looks at the page.
type Viewer struct {
	Name   string // shown; "": nothing is
	Denied bool   // may not even look: the login page, or 403
	// Look, Break and Configure say what the viewer may do; Look and Break with the lock of this
	// name. nil: everything may be looked at, nothing broken or changed.
	Look      func(lock string) bool
	Break     func(lock string) bool
	Configure bool
}

func (v Viewer) looks(lock string) bool  { return v.Look == nil || v.Look(lock) }
func (v Viewer) breaks(lock string) bool { return v.Break != nil && v.Break(lock) }

//go:embed templates holdfast.css holdfast.js
var files embed.FS

// A Handler serves the page. It keeps one list of all locks for all viewers, and reads it from
// the store only while somebody looks.
type Handler struct {
	client *holdfast.Client
	opts   Options
	mux    *http.ServeMux
	pages  map[string]*template.Template
	assets map[string]asset
	board  board
	log    *slog.Logger
	now    func() time.Time

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // breaks that go on
}

type asset struct {
	body []byte
	kind string
	tag  string // of its content
}

// New makes the page of a client's store. opts may be nil.
func New(client *holdfast.Client, opts *Options) *Handler {
	h := &Handler{client: client, mux: http.NewServeMux(), now: time.Now, log: slog.New(slog.DiscardHandler)}
	if opts != nil {
		h.opts = *opts
	}
	h.opts.Prefix = strings.TrimSuffix(h.opts.Prefix, "/")
	if h.opts.Logger != nil {
		h.log = h.opts.Logger
	}
	if h.opts.Viewer == nil {
		h.opts.Viewer = func(*http.Request) Viewer { return Viewer{} }
	}
	if h.opts.Redact == nil {
		h.opts.Redact = func(err error) string { return err.Error() }
	}
	h.board.client = client
	h.assets = map[string]asset{}
	for name, kind := range map[string]string{"holdfast.css": "text/css; charset=utf-8", "holdfast.js": "text/javascript; charset=utf-8"} {
		body, err := files.ReadFile(name)
		if err != nil {
			panic(err) // it is embedded
		}
		sum := sha256.Sum256(body)
		h.assets[name] = asset{body, kind, hex.EncodeToString(sum[:8])}
	}
	h.ctx, h.stop = context.WithCancel(context.Background())
	h.parse()
	h.routes()
	return h
}

// Close ends streams and breaks that have not been obeyed yet, and waits for the breaks. The
// handler must not be used afterwards.
func (h *Handler) Close() {
	h.stop()
	h.work.Wait()
}

// parse reads the templates: each page together with the frame.
func (h *Handler) parse() {
	h.pages = map[string]*template.Template{}
	names, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		panic(err)
	}
	frame := template.New("").Funcs(words).Funcs(template.FuncMap{
		"href":  func(path string) string { return h.opts.Prefix + "/" + path },
		"asset": func(name string) string { return h.opts.Prefix + "/" + name + "?v=" + h.assets[name].tag },
	})
	template.Must(frame.ParseFS(files, "templates/frame.html", "templates/parts.html"))
	for _, name := range names {
		short := strings.TrimSuffix(strings.TrimPrefix(name, "templates/"), ".html")
		if short == "frame" || short == "parts" {
			continue
		}
		h.pages[short] = template.Must(template.Must(frame.Clone()).ParseFS(files, name))
	}
}

func (h *Handler) routes() {
	handle := func(pattern string, f func(w http.ResponseWriter, r *http.Request, v Viewer)) {
		h.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			v := h.opts.Viewer(r)
			if v.Denied {
				h.denied(w, r)
				return
			}
			f(w, r, v)
		})
	}
	handle("GET /{$}", h.locks)
	handle("GET /lock", h.lock)
	handle("GET /hosts", h.hosts)
	handle("GET /history", h.history)
	handle("GET /doctor", h.doctor)
	handle("GET /settings", h.settings)
	handle("GET /events", h.events)
	handle("POST /break", h.breakLocks)
	handle("POST /settings", h.configure)
	h.mux.HandleFunc("GET /login", func(w http.ResponseWriter, r *http.Request) { h.login(w, r, "") })
	h.mux.HandleFunc("POST /login", h.postLogin)
	h.mux.HandleFunc("POST /logout", func(w http.ResponseWriter, r *http.Request) {
		if h.opts.Logout == nil {
			http.NotFound(w, r)
			return
		}
		h.opts.Logout(w, r)
	})
	for name, a := range h.assets {
		h.mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", a.kind)
			w.Header().Set("ETag", `"`+a.tag+`"`)
			if r.URL.Query().Get("v") == a.tag {
				w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
			}
			http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(a.body))
		})
	}
}

// policy allows what comes from this handler, and nothing inline.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// ServeHTTP serves the page below its prefix. A request that changes something is refused if
// another site sends it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", policy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("Cache-Control", "no-store")
	var site http.CrossOriginProtection
	if err := site.Check(r); err != nil {
		h.fail(w, r, http.StatusForbidden, "This request comes from another site.")
		return
	}
	http.StripPrefix(h.opts.Prefix, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "" {
			http.Redirect(w, r, h.opts.Prefix+"/", http.StatusFound)
			return
		}
		h.mux.ServeHTTP(w, r)
	})).ServeHTTP(w, r)
}

// A frame is what every page shows around its own part.
type frame struct {
	Title, Tab string
	Bare       bool // without navigation and the store: for a viewer who is not known
	Store      string
	Doctor     bool // there is such a page
	Viewer     Viewer
	Logout     bool
	Findings   int // of doctor that are not good, when it was last asked
	TTL        time.Duration
	At         time.Time
	Live       bool   // it updates itself
	Problem    string // the store did not answer
	Page       any
}

// show renders a page. An error of the store is shown with the page.
func (h *Handler) show(w http.ResponseWriter, r *http.Request, v Viewer, status int, name string, f frame) {
	f.Store, f.Viewer, f.Logout, f.Doctor = h.opts.Store, v, h.opts.Logout != nil && v.Name != "", h.opts.Doctor != nil
	f.At = h.now().UTC()
	if !f.Bare {
		f.TTL, f.Findings = h.board.ttl(r.Context()), h.board.findings()
	}
	var body bytes.Buffer
	if err := h.pages[name].ExecuteTemplate(&body, "frame", f); err != nil {
		h.log.Error("page", "name", name, "err", err)
		http.Error(w, "this page cannot be shown: see the log of this server", http.StatusInternalServerError)
		return
	}
	control := http.NewResponseController(w)               // not every writer can do all of this
	_ = control.SetWriteDeadline(time.Now().Add(patience)) // the list may have taken longer than the server allows
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body.Bytes()) // the viewer has gone
	}
	_ = control.Flush()
	_ = control.SetWriteDeadline(time.Time{})
}

// fail shows one sentence.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, status int, text string) {
	h.show(w, r, Viewer{}, status, "message", frame{Title: cmp.Or(http.StatusText(status), "error"), Bare: true, Page: text})
}

func (h *Handler) denied(w http.ResponseWriter, r *http.Request) {
	if h.opts.Login == nil || r.Method != http.MethodGet || r.URL.Path == "/events" {
		h.fail(w, r, http.StatusForbidden, "You may not look at this.")
		return
	}
	to := h.opts.Prefix + "/login"
	if r.URL.Path != "/" || r.URL.RawQuery != "" {
		to += "?to=" + template.URLQueryEscaper(strings.TrimPrefix(r.URL.RequestURI(), "/"))
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// why is an error of the store for viewers, on one line.
func (h *Handler) why(err error) string { return plain(h.opts.Redact(err)) }

// login asks for a key.
func (h *Handler) login(w http.ResponseWriter, r *http.Request, problem string) {
	if h.opts.Login == nil {
		http.NotFound(w, r)
		return
	}
	status := http.StatusOK
	if problem != "" {
		status = http.StatusUnauthorized
	}
	h.show(w, r, Viewer{}, status, "login", frame{Title: "Log in", Bare: true, Page: struct{ Problem, To string }{problem, r.FormValue("to")}})
}

// postLogin checks a key. If it is right, the caller's Login answers; it finds where the viewer
// wanted to go in the form's field "to", as a path below the prefix.
func (h *Handler) postLogin(w http.ResponseWriter, r *http.Request) {
	if h.opts.Login == nil {
		http.NotFound(w, r)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 4096)
	if !h.opts.Login(w, r, strings.TrimSpace(r.PostFormValue("key"))) {
		h.login(w, r, "That key is not known here.")
	}
}
