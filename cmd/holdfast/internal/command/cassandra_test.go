//go:build linux

package command

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/holdfast-lock/holdfast/internal/servers"
)

// What is different with Cassandra; what is not is in TestScript.
func TestScriptCassandra(t *testing.T) {
	t.Parallel()
	store := servers.Cassandra(t, nil).Keyspace(t)
	u, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	few := "hf_" + strings.ToLower(rand.Text()[:12])
	session := cassandraSession(t, store)
	cql := func(text string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := session.Query(text).ExecContext(ctx); err != nil {
			t.Error(err)
		}
	}
	cql("create keyspace " + few + " with replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
	t.Cleanup(func() { cql("drop keyspace " + few) })
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("../../testdata", "cassandra"),
		Setup: func(e *testscript.Env) error {
			for _, dir := range []string{"state", "run"} {
				if err := os.Mkdir(filepath.Join(e.WorkDir, dir), 0o700); err != nil {
					return err
				}
			}
			for name, value := range map[string]string{
				"HOLDFAST_STORE": store, "KEYSPACE": strings.Trim(u.Path, "/"), "FEW": strings.TrimSuffix(store, u.Path) + "/" + few,
				"DC": session.GetHosts()[0].DataCenter(), "GORACE": os.Getenv("GORACE"), "USER": "ana", "LOGNAME": "ana",
				"XDG_STATE_HOME": filepath.Join(e.WorkDir, "state"), "XDG_RUNTIME_DIR": filepath.Join(e.WorkDir, "run"),
			} {
				e.Setenv(name, value)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"eventually": eventually, "status": status, "token": token},
	})
}

func cassandraSession(t *testing.T, store string) *gocql.Session {
	t.Helper()
	target, err := parseStore(store)
	if err != nil {
		t.Fatal(err)
	}
	session, err := target.connectCassandra(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Close)
	return session
}

func TestCassandraConfig(t *testing.T) {
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
		target, err := parseStore(in)
		if err != nil {
			t.Fatal(err)
		}
		c, err := target.cassandraConfig()
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got := strings.Join(c.Hosts, " "); got != want || c.SslOpts != nil {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
	target, err := parseStore("cassandra://me%40corp:p%25w@db/Shop/?dc=eu&prefix=app_&allow=few-replicas,local-serial")
	if err != nil {
		t.Fatal(err)
	}
	if o := target.cassandraOptions(); o.Keyspace != "Shop" || o.Prefix != "app_" || o.LocalDC != "eu" || strings.Join(o.Allow, " ") != "few-replicas local-serial" {
		t.Errorf("got options %+v", o)
	}
	who := func(in, wantUser, wantPassword string) {
		t.Helper()
		target, err := parseStore(in)
		if err != nil {
			t.Fatal(err)
		}
		c, err := target.cassandraConfig()
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

	for in, wantSkip := range map[string]bool{"tls=verify": false, "tls=skip-verify": true, "ca=" + writeFile(t, "ca.pem", ""): false} {
		target, err := parseStore("cassandra://db/shop?" + in)
		if err != nil {
			t.Fatal(err)
		}
		c, err := target.cassandraConfig()
		if err != nil || c.SslOpts == nil || c.SslOpts.EnableHostVerification == wantSkip {
			t.Errorf("%s: got %+v, error %v", in, c, err)
		}
	}
	for in, want := range map[string]string{
		"cassandra://db":                       "names no keyspace",
		"cassandra:///shop":                    "names no host",
		"cassandra://db/shop?password=hunter2": "CASSANDRA_PASSWORD",
		"cassandra://db/shop?frob=1":           `unknown setting "frob"`,
		"cassandra://db/shop?tls=hunter2":      "tls is verify or skip-verify",
		"cassandra://db/shop?ca=/no/such":      "the settings of cassandra://db/shop cannot be used: stat /no/such: ",
		"cassandra://db/shop?cert=/dev/null":   "cannot be used: cert and key: ",
	} {
		target, err := parseStore(in)
		if err == nil {
			_, err = target.cassandraConfig()
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want %s", in, err, want)
		}
	}
	t.Setenv("CASSANDRA_PASSWORD", "")
	t.Setenv("CASSANDRA_PASSWORD_FILE", "/no/such")
	if _, err := target.cassandraConfig(); err != nil {
		t.Errorf("with a password in the URL no file is read: %v", err)
	}
	target, err = parseStore("cassandra://db/shop")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := target.cassandraConfig(); err == nil || !strings.Contains(err.Error(), "CASSANDRA_PASSWORD_FILE: open /no/such") {
		t.Errorf("got %v", err)
	}
}

// A server that speaks TLS with a certificate of nobody's is not talked to, unless
// nothing is to be verified: then it is not a Cassandra.
func TestCassandraTLS(t *testing.T) {
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
		target, err := parseStore("cassandra://" + l.Addr().String() + "/shop?" + settings)
		if err != nil {
			t.Fatal(err)
		}
		_, err = target.connectCassandra(t.Context())
		if err == nil || strings.Contains(err.Error(), "x509") != verified || unreachable(err) || !notLetIn(err) {
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
