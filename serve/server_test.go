package serve

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/serve/access"
)

// started is a Server that serves until the test ends.
func started(t *testing.T, r *replica, l Listen) *Server {
	t.Helper()
	s, err := NewServer(r.handler, l)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(ctx, 5*time.Second) }()
	t.Cleanup(func() { stop(); <-done })
	return s
}

func opened(t *testing.T, path string) *access.List {
	t.Helper()
	a, err := access.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// get asks, and says which status came; 0: there was no answer.
func get(t *testing.T, c *http.Client, url string, header ...string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if req.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func overSocket(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
}

// The socket is this user's alone, one server has it, and one that a dead server has left is
// taken over.
func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "serve.sock")
	r := newReplica(t, memory.New(), &Options{Access: opened(t, "")})
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	started(t, r, Listen{Socket: path})
	for _, c := range []struct {
		path string
		mode os.FileMode
	}{{path, 0o600}, {filepath.Dir(path), 0o700}} {
		if info, err := os.Stat(c.path); err != nil || info.Mode().Perm() != c.mode {
			t.Errorf("%s: %v, %v", c.path, info.Mode(), err)
		}
	}
	if got := get(t, overSocket(path), "http://holdfast/v1/locks"); got != 200 {
		t.Errorf("this user: %d", got)
	}
	if _, err := NewServer(r.handler, Listen{Socket: path}); err == nil || !strings.Contains(err.Error(), "another server") {
		t.Errorf("a second server: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, []byte("mine"), 0o600)
	if _, err := NewServer(r.handler, Listen{Socket: file}); err == nil {
		t.Error("a file was replaced")
	}
}

// Other users of the host reach loopback: they need the key. A page whose name was made to point
// to loopback has another name.
func TestLoopback(t *testing.T) {
	list := opened(t, "")
	key := list.NewKey()
	r := newReplica(t, memory.New(), &Options{Access: list})
	s := started(t, r, Listen{Address: "127.0.0.1:0"})
	url := "http://" + s.Address() + "/v1/locks"
	_, port, _ := net.SplitHostPort(s.Address())
	for _, c := range []struct {
		header []string
		status int
	}{
		{nil, 401}, {[]string{"Authorization", "Bearer " + key}, 200}, {[]string{"Authorization", "Bearer no"}, 401},
		{[]string{"Authorization", "Bearer " + key, "Host", "evil.example"}, 403}, {[]string{"Authorization", "Bearer " + key, "Host", "evil.example:" + port}, 403},
		{[]string{"Authorization", "Bearer " + key, "Host", "localhost:" + port}, 200}, {[]string{"Authorization", "Bearer " + key, "Host", "127.0.0.1.evil.example"}, 403},
		{[]string{"Authorization", "Bearer " + key, "Host", "[::1]:" + port}, 200},
	} {
		if got := get(t, http.DefaultClient, url, c.header...); got != c.status {
			t.Errorf("%.60q: %d, want %d", c.header, got, c.status)
		}
	}
	if _, err := NewServer(newReplica(t, memory.New(), nil).handler, Listen{Address: "127.0.0.1:0"}); err == nil {
		t.Error("an address without an Access")
	}
	second, err := NewServer(r.handler, Listen{Address: s.Address(), Other: true})
	if err != nil || second.Address() == s.Address() {
		t.Errorf("the port is in use: %v", err)
	} else {
		second.closeListeners()
	}
}

// Beyond loopback nothing goes without TLS and a tokens file.
func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t)
	cert, key := ca.files(t, dir, "server", "localhost")
	tokens := filepath.Join(dir, "tokens")
	writeTokens(t, tokens, "# nobody")
	for _, c := range []struct {
		what   string
		tokens string
		listen Listen
		says   string // "": it listens
	}{
		{"plain", tokens, Listen{Address: "0.0.0.0:0"}, "certificate"},
		{"plain, all", tokens, Listen{Address: ":0"}, "certificate"},
		{"plain, IPv6", tokens, Listen{Address: "[::]:0"}, "certificate"},
		{"TLS without tokens", "", Listen{Address: ":0", Cert: cert, Key: key}, "tokens file"},
		{"proxy without tokens", "", Listen{Address: ":0", PlainHTTP: true}, "tokens file"},
		{"half of TLS", tokens, Listen{Address: ":0", Cert: cert}, "key"},
		{"client certificates without TLS", tokens, Listen{Address: ":0", ClientCA: ca.file(t, dir), PlainHTTP: true}, "key of the server"},
		{"no such files", tokens, Listen{Address: ":0", Cert: cert + "x", Key: key}, "no such file"},
		{"nowhere", tokens, Listen{}, "neither"},
		{"TLS", tokens, Listen{Address: ":0", Cert: cert, Key: key}, ""},
		{"proxy", tokens, Listen{Address: ":0", PlainHTTP: true}, ""},
	} {
		r := newReplica(t, memory.New(), &Options{Access: opened(t, c.tokens)})
		s, err := NewServer(r.handler, c.listen)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.what, err)
		}
		if s != nil {
			s.closeListeners()
		}
	}
}

// An authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: fmt.Sprint("CA ", time.Now().UnixNano())}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

func (a *authority) issue(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a *authority) file(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "ca.crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (a *authority) files(t *testing.T, dir, base, name string) (cert, key string) {
	t.Helper()
	c := a.issue(t, name)
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, base+".crt"), filepath.Join(dir, base+".key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// Certificates of clients are believed in if the authority of now has issued them; what is served
// follows its files; a session does not outlive the authority on which it rests.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	ca, other := newAuthority(t), newAuthority(t)
	cert, key := ca.files(t, dir, "server", "one.example")
	tokens := filepath.Join(dir, "tokens")
	writeTokens(t, tokens, "db-ops cert:DNS:ops.example look,configure *")
	r := newReplica(t, memory.New(), &Options{Access: opened(t, tokens)})
	s := started(t, r, Listen{Address: "127.0.0.1:0", Cert: cert, Key: key, ClientCA: ca.file(t, dir)})
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	cache := tls.NewLRUClientSessionCache(10)
	serverName := ""
	as := func(certs ...tls.Certificate) *http.Client {
		c := &tls.Config{RootCAs: roots, ClientSessionCache: cache, VerifyConnection: func(c tls.ConnectionState) error { serverName = c.PeerCertificates[0].DNSNames[0]; return nil }}
		if len(certs) > 0 { // whether or not the server would like it
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certs[0], nil }
		}
		return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ForceAttemptHTTP2: true, TLSClientConfig: c}}
	}
	url := "https://" + s.Address() + "/v1/locks"
	ops := ca.issue(t, "ops.example")
	for _, c := range []struct {
		what   string
		client *http.Client
		status int
	}{
		{"ops", as(ops), 200}, {"nobody", as(), 401}, {"one without a line", as(ca.issue(t, "dev.example")), 401},
		{"one of another authority", as(other.issue(t, "ops.example")), 0},
		{"TLS 1.2", &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS12}}}, 0},
		{"no TLS", http.DefaultClient, 400},
	} {
		u := url
		if c.what == "no TLS" {
			u = "http://" + s.Address() + "/v1/locks"
		}
		if got := get(t, c.client, u); got != c.status {
			t.Errorf("%s: %d, want %d", c.what, got, c.status)
		}
	}
	later := func() { s.tls.mu.Lock(); s.tls.looked = time.Time{}; s.tls.mu.Unlock() } // a second has passed
	if get(t, as(ops), url) != 200 || serverName != "one.example" {
		t.Errorf("served as %q", serverName)
	}
	time.Sleep(10 * time.Millisecond) // the clock of files
	ca.files(t, dir, "server", "two.example")
	later()
	if get(t, as(ops), url) != 200 || serverName != "two.example" {
		t.Errorf("served as %q after the files were exchanged", serverName)
	}
	os.WriteFile(key, []byte("nonsense"), 0o600)
	later()
	if get(t, as(ops), url) != 200 || serverName != "two.example" {
		t.Errorf("served as %q while the files do not fit", serverName)
	}
	ca.files(t, dir, "server", "three.example")
	other.file(t, dir)
	later()
	if got := get(t, as(ops), url); got != 0 {
		t.Errorf("a client whose authority has gone: %d", got)
	}
	if got := get(t, as(other.issue(t, "ops.example")), url); got != 200 {
		t.Errorf("a client of the new authority: %d", got)
	}
}

// A pipe is a network without buffers, in time that the test turns.
type pipe struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipe() *pipe { return &pipe{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipe) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipe) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipe) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// slowly runs f with a server in time that does not pass by itself, and somebody who may do
// everything.
func slowly(t *testing.T, f func(t *testing.T, r *replica, p *pipe, key string)) {
	synctest.Test(t, func(t *testing.T) {
		list := opened(t, "")
		key := list.NewKey()
		r := newReplica(t, memory.New(), &Options{Access: list})
		p := newPipe()
		s, err := NewServer(r.handler, Listen{Socket: filepath.Join(t.TempDir(), "s")})
		if err != nil {
			t.Fatal(err)
		}
		s.closeListeners()
		s.listeners = []net.Listener{p}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); s.Serve(ctx, 5*time.Second) }()
		f(t, r, p, key)
		stop()
		<-done
	})
}

// until is how long a connection stands.
func until(c net.Conn) time.Duration {
	begun := time.Now()
	io.Copy(io.Discard, c)
	return time.Since(begun)
}

// A client that sends slowly, or too much, is cut off.
func TestSlowSenders(t *testing.T) {
	slowly(t, func(t *testing.T, r *replica, p *pipe, key string) {
		for _, c := range []struct {
			what, send string
			most       time.Duration
		}{
			{"nothing", "", headerTimeout},
			{"half a header", "GET /v1/locks HTTP/1.1\r\nHost: x\r\nX-", headerTimeout},
			{"half a body of a stranger", "PUT /v1/holds/" + id(1) + " HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{", bodyTimeout},
			{"half a body", "PUT /v1/holds/" + id(1) + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key + "\r\nContent-Length: 50\r\n\r\n{", bodyTimeout},
			{"and then nothing", "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", idleTimeout},
		} {
			conn := p.dial()
			go io.WriteString(conn, c.send)
			if took := until(conn); took > c.most+time.Second || took < c.most-time.Second {
				t.Errorf("%s: cut off after %v, want %v", c.what, took, c.most)
			}
			conn.Close()
		}
		conn := p.dial()
		go io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Large: "+strings.Repeat("x", 2*maxHeader)+"\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != 431 {
			t.Errorf("a large header: %v, %v", resp, err)
		}
		conn.Close()
	})
}

// A client that does not read its stream is cut off, and its hold lapses.
func TestSlowReaders(t *testing.T) {
	slowly(t, func(t *testing.T, r *replica, p *pipe, key string) {
		conn := p.dial()
		body := `{"name":"n"}`
		go fmt.Fprintf(conn, "PUT /v1/holds/%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nAccept: application/x-ndjson\r\nContent-Length: %d\r\n\r\n%s", id(1), key, len(body), body)
		resp, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		begun := time.Now()
		for time.Since(begun) < time.Minute { // and reads no more
			time.Sleep(time.Second)
			if info, err := r.client.Show(t.Context(), "n"); err == nil && len(info.Holders) == 1 && info.Holders[0].BeatAge > info.Holders[0].TTL {
				break
			}
			if _, err := r.client.TryAcquire(t.Context(), "n"); err == nil {
				break
			}
		}
		if took := time.Since(begun); took > 40*time.Second || took < 10*time.Second {
			t.Errorf("the hold of one who does not read ended after %v", took)
		}
		conn.Close()
		plain := p.dial() // one that does not read a plain answer is cut off as well
		fmt.Fprintf(plain, "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
		time.Sleep(2 * writeTimeout)
		if text, _ := io.ReadAll(plain); len(text) >= len(description) {
			t.Errorf("one who does not read for long is still sent %d bytes", len(text))
		}
	})
}

// There is room for so many connections; more are closed at once, and room comes back.
func TestConnectionLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipe()
		l := &limitedListener{p, make(chan struct{}, 2), doorUnix}
		accepted := make(chan net.Conn)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				accepted <- c
			}
		}()
		p.dial()
		first := <-accepted
		p.dial()
		<-accepted
		third := p.dial()
		if _, err := third.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a third: %v", err)
		}
		first.Close()
		first.Close()
		p.dial()
		<-accepted
		fourth := p.dial()
		if _, err := fourth.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("room was given back twice: %v", err)
		}
		p.Close()
	})
}
