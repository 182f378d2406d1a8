package admin

import (
	"slices"
	"testing"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/etcd"
)

// The doctor says who can read a password on its way: the clients of some databases
// send it as it is.
func TestEncryption(t *testing.T) {
	defer func(k []*driver.Kind, p []cli.Program) { cli.Kinds, cli.Others = k, p }(cli.Kinds, cli.Others)
	cli.Kinds, cli.Others = append(slices.Clone(cli.Kinds), etcd.Kind), nil
	says := func(level driver.Level) func(string) []driver.Finding {
		return func(text string) []driver.Finding {
			return []driver.Finding{{Level: level, Subject: "encryption", Text: text}}
		}
	}
	warn, good := says(driver.Warning), says(driver.Good)
	for _, test := range []struct {
		store, env string
		want       []driver.Finding
	}{
		{"etcd://app:hunter2@etcd1.example,10.0.0.7:2379", "",
			warn(`none: whoever can listen on the way to etcd1.example, 10.0.0.7 reads the password of "app", and every name and reason. Have the servers encrypt, and add tls=verify to the URL`)},
		{"cassandra://db1.example/shop?dc=eu", "hunter2",
			warn(`none: whoever can listen on the way to db1.example reads the password of "me", and every name and reason. Have the servers encrypt, and add tls=verify to the URL`)},
		{"etcd://app:hunter2@127.0.0.1,far.example", "", warn(`none: whoever can listen on the way to 127.0.0.1, far.example reads the password of "app", and every name and reason. Have the servers encrypt, and add tls=verify to the URL`)},
		{"etcd://app:hunter2@127.0.0.1,[::1]:2379,localhost", "", good("none, and the servers are on this host")},
		{"etcd://app@etcd1.example", "", good("none, and no password is sent")},
		{"etcd://app:hunter2@etcd1.example?tls=verify", "", good("TLS, and the servers' certificates are checked")},
		{"cassandra://app:hunter2@db1.example/shop?ca=/etc/ca.pem", "", good("TLS, and the servers' certificates are checked")},
		{"cassandra://app:hunter2@db1.example/shop?tls=skip-verify", "", warn("tls=skip-verify: the server's certificate is not checked, so another server could read the password. Use tls=verify")},
		{"postgres://app:hunter2@db1.example/shop", "", nil}, // PostgreSQL's and MySQL's clients prove that they know it
		{"mysql://app:hunter2@db1.example/shop", "", nil},
		{"memory:", "", nil},
	} {
		for _, name := range []string{"ETCD", "CASSANDRA"} {
			t.Setenv(name+"_USER", "me")
			t.Setenv(name+"_PASSWORD", test.env)
		}
		target, err := cli.ParseStore(test.store)
		if err != nil {
			t.Fatal(err)
		}
		d := &checkup{}
		d.encryption(target)
		if !slices.Equal(d.findings, test.want) {
			t.Errorf("%s: got %+v, want %+v", test.store, d.findings, test.want)
		}
	}
}
