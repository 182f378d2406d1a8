package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/serve/access"
)

// A Server listens for a Handler, and decides how far to trust a connection by its door: the unix
// socket, which the kernel guards; loopback, which other users of the host reach as well; or the
// network, with TLS.
type Server struct {
	handler   *Handler
	http      *http.Server
	listeners []net.Listener
	socket    string
	address   string
	tls       *tlsFiles
	unlock    func()
}

// Listen says where a Server listens.
type Listen struct {
	// Socket is the path of a unix socket. Its directory is made if it is not there, for this
	// user alone. "": none.
	Socket string
	// Everybody lets all users of the host connect to the socket. Those that the tokens file does
	// not name may do nothing.
	Everybody bool
	// Address is host:port. "": none. Beyond loopback it needs Cert, Key and an Access with a
	// tokens file.
	Address string
	// Other takes a free port of loopback if that of Address is in use.
	Other bool
	// Cert and Key are files for TLS. ClientCA is the one that clients' certificates are verified
	// with. All are read again when they change.
	Cert, Key, ClientCA string
	// PlainHTTP allows listening beyond loopback without TLS, behind a proxy that terminates it.
	PlainHTTP bool
	// Logger gets what goes wrong with connections. nil: silence.
	Logger *slog.Logger
}

// A door is what a connection came through.
type door int

const (
	doorUnknown door = iota
	doorUnix
	doorLoopback
	doorTLS
	doorProxied
)

type doorKey struct{}

// NewServer opens the listeners. Connections wait until Serve.
func NewServer(h *Handler, l Listen) (_ *Server, err error) {
	s := &Server{handler: h}
	defer func() {
		if err != nil {
			s.closeListeners()
		}
	}()
	log := l.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s.http = &http.Server{
		Handler: s.guard(h), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), ConnContext: s.connected,
	}
	room := make(chan struct{}, maxConnections)
	if l.Socket != "" {
		ln, err := s.listenUnix(l)
		if err != nil {
			return nil, err
		}
		s.listeners = append(s.listeners, &limitedListener{ln, room, doorUnix})
	}
	if l.Address != "" {
		ln, door, err := s.listenTCP(l)
		if err != nil {
			return nil, err
		}
		ln = &limitedListener{ln, room, door}
		if s.tls != nil {
			ln = tls.NewListener(ln, s.tls.config())
		}
		s.listeners = append(s.listeners, ln)
	}
	if len(s.listeners) == 0 {
		return nil, errors.New("neither a socket nor an address to listen on")
	}
	return s, nil
}

// listenUnix makes the socket, in place of one that a dead server has left.
func (s *Server) listenUnix(l Listen) (net.Listener, error) {
	if l.Everybody && !access.KnowsPeers {
		return nil, errors.New("a socket for everybody needs a kernel that says who has connected, and this one does not")
	}
	if err := os.MkdirAll(filepath.Dir(l.Socket), 0o700); err != nil {
		return nil, err
	}
	unlock, err := lockFile(l.Socket + ".lock")
	if err != nil {
		return nil, fmt.Errorf("%s: another server has it: %w", l.Socket, err)
	}
	s.unlock = unlock
	if info, err := os.Lstat(l.Socket); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("%s exists and is not a socket", l.Socket)
		}
		os.Remove(l.Socket) // nobody has the lock: it was left behind
	}
	ln, err := net.Listen("unix", l.Socket)
	if err != nil {
		return nil, err
	}
	mode := os.FileMode(0o600)
	if l.Everybody {
		mode = 0o666
	}
	if err := os.Chmod(l.Socket, mode); err != nil {
		ln.Close()
		return nil, err
	}
	s.socket = l.Socket
	return ln, nil
}

// listenTCP listens on an address, if that is safe.
func (s *Server) listenTCP(l Listen) (net.Listener, door, error) {
	addr, err := net.ResolveTCPAddr("tcp", l.Address)
	if err != nil {
		return nil, 0, err
	}
	near, secure := addr.IP.IsLoopback(), l.Cert != "" || l.Key != ""
	list := s.handler.opts.Access
	switch {
	case list == nil:
		return nil, 0, errors.New("to listen at an address needs an Access")
	case l.ClientCA != "" && !secure:
		return nil, 0, errors.New("to check certificates of clients needs a certificate and a key of the server")
	case near:
	case !secure && !l.PlainHTTP:
		return nil, 0, fmt.Errorf("%s is beyond loopback: it needs a certificate and a key, or --allow plain-http behind a proxy that terminates TLS", l.Address)
	case list.File() == "":
		return nil, 0, fmt.Errorf("%s is beyond loopback: it needs a tokens file that says who may do what", l.Address)
	}
	door := doorLoopback
	switch {
	case secure:
		door = doorTLS
		if s.tls, err = newTLSFiles(l.Cert, l.Key, l.ClientCA, s.handler.log); err != nil {
			return nil, 0, err
		}
	case !near:
		door = doorProxied
	}
	ln, err := net.ListenTCP("tcp", addr)
	if err != nil && l.Other && near {
		addr.Port = 0
		ln, err = net.ListenTCP("tcp", addr)
	}
	if err != nil {
		return nil, 0, err
	}
	s.address = ln.Addr().String()
	return ln, door, nil
}

// Socket is the path of the unix socket; "": there is none.
func (s *Server) Socket() string { return s.socket }

// Address is the host and port that the server listens on; "": none.
func (s *Server) Address() string { return s.address }

// Serve serves until ctx ends. Then it drains: health says so, waiting requests are answered at
// once, connections are no longer accepted, and requests under way have up to patience to end.
func (s *Server) Serve(ctx context.Context, patience time.Duration) error {
	failed := make(chan error, len(s.listeners))
	for _, ln := range s.listeners {
		go func() { failed <- s.http.Serve(ln) }()
	}
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	s.handler.Drain()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if s.http.Shutdown(end) != nil {
		s.http.Close()
	}
	s.closeListeners()
	s.handler.Close()
	return err
}

func (s *Server) closeListeners() {
	for _, ln := range s.listeners {
		ln.Close()
	}
	if s.unlock != nil {
		s.unlock()
		s.unlock = nil
	}
}

// connected notes what a connection came through, and who is at the other end.
func (s *Server) connected(ctx context.Context, c net.Conn) context.Context {
	d := doorUnknown
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if l, ok := c.(*limitedConn); ok {
		d, c = l.door, l.Conn
	}
	ctx = context.WithValue(ctx, doorKey{}, d)
	if d == doorProxied {
		ctx = access.WithProxy(ctx)
	}
	if u, ok := c.(*net.UnixConn); ok {
		ctx = access.WithPeer(ctx, u)
	}
	return ctx
}

// guard refuses requests that a browser was tricked into (DNS rebinding): those of a page whose
// owner has pointed its name at loopback.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(doorKey{}) == doorLoopback && !nearHost(r.Host) {
			_, r = withNote(r)
			refuse(w, r, "forbidden", fmt.Sprintf("this server is not called %q", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// nearHost reports whether a Host header names loopback.
func nearHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// A limitedListener accepts as many connections as there is room for, and closes the others.
type limitedListener struct {
	net.Listener
	room chan struct{}
	door door
}

type limitedConn struct {
	net.Conn
	door door
	done func()
}

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.room <- struct{}{}:
			return &limitedConn{c, l.door, sync.OnceFunc(func() { <-l.room })}, nil
		default:
			c.Close()
		}
	}
}

func (c *limitedConn) Close() error {
	defer c.done()
	return c.Conn.Close()
}
