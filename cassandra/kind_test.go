package cassandra

import (
	"errors"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"

	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	storeurl "github.com/holdfast-lock/holdfast/open"
)

// at understands a URL of a store.
func at(in string) (*driver.Location, error) { return storeurl.Parse(in, Kind) }

func TestURL(t *testing.T) {
	for _, name := range []string{"CASSANDRA_USER", "CASSANDRA_PASSWORD", "CASSANDRA_PASSWORD_FILE"} {
		t.Setenv(name, "")
	}
	for in, want := range map[string]string{
		"cassandra://db/shop":                     "db:9042",
		"cassandra://a,b,c:9999/shop":             "a:9999 b:9999 c:9999",
		"cassandra://a:1,b:2,c/shop":              "a:1 b:2 c:9042",
		"cassandra://app:x@[::1],[::2]:9999/shop": "[::1]:9999 [::2]:9999",
		"cassandra://app:x@127.0.0.1:9999/shop?dc=eu&prefix=app_&allow=few-replicas": "127.0.0.1:9999",
	} {
		target, err := at(in)
		if err != nil {
			t.Fatal(err)
		}
		c, err := configOf(target)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got := strings.Join(c.Hosts, " "); got != want || c.SslOpts != nil {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
	target, err := at("cassandra://me%40corp:p%25w@db/Shop/?dc=eu&prefix=app_&allow=few-replicas,local-serial")
	if err != nil {
		t.Fatal(err)
	}
	if o := optionsOf(target); o.Keyspace != "Shop" || o.Prefix != "app_" || o.LocalDC != "eu" || strings.Join(o.Allow, " ") != "few-replicas local-serial" {
		t.Errorf("got options %+v", o)
	}
	who := func(in, wantUser, wantPassword string) {
		t.Helper()
		target, err := at(in)
		if err != nil {
			t.Fatal(err)
		}
		c, err := configOf(target)
		if err != nil {
			t.Fatal(err)
		}
		auth, _ := c.Authenticator.(gocql.PasswordAuthenticator)
		if auth.Username != wantUser || auth.Password != wantPassword {
			t.Errorf("%s: got %s with %s, want %s with %s", in, auth.Username, auth.Password, wantUser, wantPassword)
		}
	}
	who("cassandra://me%40corp:p%25w@db/shop", "me@corp", "p%w")
	who("cassandra://db/shop", "", "")
	t.Setenv("CASSANDRA_PASSWORD_FILE", writeFile(t, "password", "of the file\n"))
	t.Setenv("CASSANDRA_USER", "app")
	who("cassandra://db/shop", "app", "of the file")
	t.Setenv("CASSANDRA_PASSWORD", "of the environment")
	who("cassandra://ana@db/shop", "ana", "of the environment")
	who("cassandra://ana:@db/shop", "ana", "")

	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: selfSigned(t).Certificate[0]}))
	for in, wantSkip := range map[string]bool{"tls=verify": false, "tls=skip-verify": true, "ca=" + writeFile(t, "ca.pem", ca): false} {
		target, err := at("cassandra://db/shop?" + in)
		if err != nil {
			t.Fatal(err)
		}
		c, err := configOf(target)
		if err != nil || c.SslOpts == nil || c.SslOpts.InsecureSkipVerify != wantSkip {
			t.Errorf("%s: got %+v, error %v", in, c, err)
		}
	}
	for in, want := range map[string]string{
		"cassandra://db":                       "names no keyspace",
		"cassandra:///shop":                    "names no host",
		"cassandra://db/shop?password=hunter2": "CASSANDRA_PASSWORD",
		"cassandra://db/shop?frob=1":           `unknown setting "frob"`,
		"cassandra://db/shop?tls=hunter2":      "tls is verify or skip-verify",
		"cassandra://db/shop?ca=/no/such":      "the settings of cassandra://db/shop cannot be used: open /no/such: ",
		"cassandra://db/shop?ca=/dev/null":     "has no certificate",
		"cassandra://db/shop?cert=/dev/null":   "cannot be used: cert and key: ",
	} {
		target, err := at(in)
		if err == nil {
			_, err = configOf(target)
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want %s", in, err, want)
		}
	}
	t.Setenv("CASSANDRA_PASSWORD", "")
	t.Setenv("CASSANDRA_PASSWORD_FILE", "/no/such")
	if _, err := configOf(target); err != nil {
		t.Errorf("with a password in the URL no file is read: %v", err)
	}
	target, err = at("cassandra://db/shop")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := configOf(target); err == nil || !strings.Contains(err.Error(), "CASSANDRA_PASSWORD_FILE: open /no/such") {
		t.Errorf("got %v", err)
	}
}

// A server that speaks TLS with a certificate of nobody's is not talked to, unless
// nothing is to be verified: then it is not a Cassandra.
func TestTLS(t *testing.T) {
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.(*tls.Conn).Handshake()
			c.Close()
		}
	}()
	for settings, verified := range map[string]bool{"tls=verify": true, "tls=skip-verify": false} {
		target, err := at("cassandra://" + l.Addr().String() + "/shop?" + settings)
		if err != nil {
			t.Fatal(err)
		}
		_, err = connectTo(t.Context(), target)
		if err == nil || strings.Contains(err.Error(), "x509") != verified || Kind.ReachOf(err) != driver.NotLetIn {
			t.Errorf("%s: %v", settings, err)
		}
	}
}

// selfSigned is a certificate that nobody has signed but itself.
func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The driver is given the password that stands in the URL, however odd it is, and nothing that
// is said shows it.
func FuzzURL(f *testing.F) {
	drivertest.FuzzKind(f, Kind, func(at *driver.Location) (string, error) {
		c, err := configOf(at)
		if err != nil {
			return "", err
		}
		auth, ok := c.Authenticator.(gocql.PasswordAuthenticator)
		if !ok {
			return "", errors.New("no user, and so no password")
		}
		return auth.Password, nil
	})
}
