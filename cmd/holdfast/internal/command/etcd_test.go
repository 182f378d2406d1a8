//go:build linux

package command

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

// A certificate, or a password, says who may use an etcd, over TLS; a role
// needs only the keys below the prefix.
func TestEtcdAccess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca := newIssuer(t, dir)
	ca.issue(t, "server", "")
	ca.issue(t, "app", "app")
	ca.issue(t, "nobody", "nobody")
	stranger := newIssuer(t, t.TempDir())
	stranger.issue(t, "app", "app")
	s := servers.Etcd(t, &servers.Options{Settings: []string{
		"cert-file=" + ca.file("server.pem"), "key-file=" + ca.file("server.key"),
		"trusted-ca-file=" + ca.file("ca.pem"), "client-cert-auth=true",
	}})
	host := strings.TrimPrefix(s.URL, "https://")
	pair, err := tls.LoadX509KeyPair(ca.file("server.pem"), ca.file("server.key"))
	if err != nil {
		t.Fatal(err)
	}
	admin := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}}}}
	for _, call := range [][2]string{
		{"user/add", `{"name": "root", "password": "r00t"}`}, {"role/add", `{"name": "root"}`}, {"user/grant", `{"user": "root", "role": "root"}`},
		{"role/add", `{"name": "locks"}`}, // from holdfast/ to holdfast0
		{"role/grant", `{"name": "locks", "perm": {"permType": "READWRITE", "key": "aG9sZGZhc3Qv", "range_end": "aG9sZGZhc3Qw"}}`},
		{"user/add", `{"name": "app", "password": "hunter2"}`}, {"user/grant", `{"user": "app", "role": "locks"}`},
		{"user/add", `{"name": "nobody", "password": "x"}`}, {"enable", `{}`},
	} {
		resp, err := admin.Post(s.URL+"/v3/auth/"+call[0], "application/json", bytes.NewBufferString(call[1]))
		if err != nil {
			t.Fatal(err)
		}
		said, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", call[0], said)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "holdfast-etcd")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	key := func(of *issuer, name string) string {
		return "?ca=" + ca.file("ca.pem") + "&cert=" + of.file(name+".pem") + "&key=" + of.file(name+".key")
	}
	for _, test := range []struct{ what, store, want string }{
		{"a certificate", "etcd://" + host + key(ca, "app"), ""},
		{"a password", "etcd://app:hunter2@" + host + key(ca, "server"), ""},
		{"a wrong password", "etcd://app:hunter3@" + host + key(ca, "server"), "authentication failed"},
		{"one who has no role", "etcd://" + host + key(ca, "nobody"), "permission denied"},
		{"keys of others", "etcd://" + host + key(ca, "app") + "&prefix=other/", "permission denied"},
		{"a certificate of a stranger", "etcd://" + host + key(stranger, "app"), "cannot "},
		{"no certificate", "etcd://" + host + "?ca=" + ca.file("ca.pem"), "cannot "},
		{"a server that is not known", "etcd://" + host + "?tls=verify&cert=" + ca.file("app.pem") + "&key=" + ca.file("app.key"), "cannot "},
	} {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			c := exec.Command(program, "--store", test.store, "run", "a", "--", "true")
			c.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
			out, err := c.CombinedOutput()
			switch {
			case test.want == "" && (err != nil || len(out) > 0):
				t.Errorf("%v: %s", err, out)
			case test.want != "" && (c.ProcessState.ExitCode() != cli.ExitStore || !strings.Contains(string(out), test.want)):
				t.Errorf("status %d, want %d with %q: %s", c.ProcessState.ExitCode(), cli.ExitStore, test.want, out)
			case strings.Contains(string(out), "hunter"):
				t.Errorf("it tells a secret: %s", out)
			}
		})
	}
}

// An issuer makes certificates as files.
type issuer struct {
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newIssuer(t *testing.T, dir string) *issuer {
	t.Helper()
	ca := &issuer{dir: dir}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true}
	ca.key, ca.cert = ca.sign(t, "ca", about)
	return ca
}

func (ca *issuer) file(name string) string { return filepath.Join(ca.dir, name) }

// issue writes NAME.pem and NAME.key, for a user of that name or for nobody.
func (ca *issuer) issue(t *testing.T, name, user string) {
	t.Helper()
	ca.sign(t, name, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: user},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

func (ca *issuer) sign(t *testing.T, name string, about *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about.NotBefore, about.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	by, with := ca.cert, ca.key
	if by == nil {
		by, with = about, key
	}
	der, err := x509.CreateCertificate(rand.Reader, about, by, &key.PublicKey, with)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(ca.file(file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return key, cert
}
