package serve

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// tlsFiles are the files of a server for TLS. They are read again when they change; open
// connections keep what they began with.
type tlsFiles struct {
	cert, key, clientCA string
	log                 *slog.Logger

	mu     sync.Mutex
	looked time.Time
	stamps [3]stamp
	now    *tls.Config
}

// A stamp tells whether a file has changed.
type stamp struct {
	time time.Time
	size int64
}

func newTLSFiles(cert, key, clientCA string, log *slog.Logger) (*tlsFiles, error) {
	if cert == "" || key == "" {
		return nil, fmt.Errorf("TLS needs a certificate and its key")
	}
	f := &tlsFiles{cert: cert, key: key, clientCA: clientCA, log: log}
	stamps := f.stamp()
	now, err := f.load()
	if err != nil {
		return nil, err
	}
	f.now, f.stamps, f.looked = now, stamps, time.Now()
	return f, nil
}

func (f *tlsFiles) stamp() (s [3]stamp) {
	for i, path := range []string{f.cert, f.key, f.clientCA} {
		if info, err := os.Stat(path); err == nil {
			s[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return s
}

// load reads the files.
func (f *tlsFiles) load() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"},
		SessionTicketsDisabled: true} // or a ticket would outlive the authority that it rests on
	if f.clientCA == "" {
		return c, nil
	}
	pem, err := os.ReadFile(f.clientCA)
	if err != nil {
		return nil, err
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.VerifyClientCertIfGiven
	if !c.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate", f.clientCA)
	}
	return c, nil
}

// config uses the current files at each handshake.
func (f *tlsFiles) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.current(), nil }}
}

// current is what the files say; they are looked at once a second at most. If they do not fit
// together, as while they are being replaced, what they said before stays in force.
func (f *tlsFiles) current() *tls.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) < time.Second {
		return f.now
	}
	f.looked = time.Now()
	stamps := f.stamp()
	if stamps == f.stamps {
		return f.now
	}
	now, err := f.load()
	if err != nil {
		f.log.Error("the files for TLS cannot be used; what they said before still holds", "err", err)
		return f.now
	}
	f.now, f.stamps = now, stamps
	f.log.Warn("the files for TLS have changed", "cert", f.cert)
	return f.now
}
