package command

import (
	"cmp"
	"context"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// What the URLs of clusters have in common: several hosts, a user by URL or
// environment.

// hosts are the hosts of the URL, each with its port, or that of the last, or this one.
func (t target) hosts(last string) (hosts []string, err error) {
	for i, host := range slices.Backward(strings.Split(t.address.host, ",")) {
		name, port, err := net.SplitHostPort(host)
		if err != nil {
			name, port = strings.Trim(host, "[]"), last
		} else if i == strings.Count(t.address.host, ",") {
			last = port
		}
		if name == "" {
			return nil, usage("%s names no host: write it as in %s", t, t.example)
		}
		hosts = append(hosts, net.JoinHostPort(name, port))
	}
	slices.Reverse(hosts)
	return hosts, nil
}

// login is who we are: by the URL, or by the environment, whose variables begin so.
func (t target) login(env string) (user, password string, err error) {
	a := t.address
	user, _ = url.PathUnescape(a.user)
	user = cmp.Or(user, os.Getenv(env+"_USER"))
	if a.secret {
		password, _ = url.PathUnescape(a.password)
		return user, password, nil
	}
	if password = os.Getenv(env + "_PASSWORD"); password != "" {
		return user, password, nil
	}
	if path := os.Getenv(env + "_PASSWORD_FILE"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", "", usage("%s_PASSWORD_FILE: %v", env, err)
		}
		password = strings.TrimRight(string(text), "\r\n")
	}
	return user, password, nil
}

// A denial is an error of the driver where a server was reached.
type denial struct{ err error }

func (d *denial) Error() string { return strings.TrimPrefix(d.err.Error(), "gocql: ") }
func (d *denial) Unwrap() error { return d.err }

// whyNot finds out whether it is the way to the servers that is at fault: the
// driver tells only in words.
func whyNot(ctx context.Context, hosts []string, err error) error {
	var way error
	for _, host := range hosts {
		dialer := net.Dialer{Timeout: time.Second}
		conn, dialErr := dialer.DialContext(ctx, "tcp", host)
		if dialErr == nil {
			conn.Close()
			return &denial{err}
		}
		way = dialErr
	}
	return way
}

// passwordEnv is how the environment's variables begin where the client of a database
// sends the password as it is.
var passwordEnv = map[string]string{"cassandra": "CASSANDRA", "etcd": "ETCD"}

// encryption tells who can read along on the way to such a database.
func (d *checkup) encryption(t target) {
	env, ok := passwordEnv[t.scheme]
	settings, err := url.ParseQuery(t.address.query)
	if !ok || err != nil {
		return
	}
	user, password, err := t.login(env)
	hosts, far := t.far()
	switch {
	case err != nil:
	case settings.Get("tls") == "skip-verify":
		d.warn("encryption", "tls=skip-verify: nobody makes sure that it is your server, which reads the password. Use tls=verify")
	case settings.Get("tls")+settings.Get("ca")+settings.Get("cert")+settings.Get("key") != "":
		d.ok("encryption", "TLS, and the servers' certificates are checked")
	case password == "":
		d.ok("encryption", "none; nor is there a password")
	case !far:
		d.ok("encryption", "none, and the servers are on this host")
	default:
		d.warn("encryption", "none: whoever can listen on the way to %s reads the password of %s, and every name and reason. Have the servers encrypt, and add tls=verify to the URL", strings.Join(hosts, ", "), quote(user))
	}
}

// far are the hosts of the URL, and whether one of them is another than this one.
func (t target) far() (hosts []string, far bool) {
	for host := range strings.SplitSeq(t.address.host, ",") {
		name, _, err := net.SplitHostPort(host)
		if err != nil {
			name = host
		}
		name = strings.Trim(name, "[]")
		ip := net.ParseIP(name)
		far = far || name != "localhost" && (ip == nil || !ip.IsLoopback())
		hosts = append(hosts, escape(name))
	}
	return hosts, far
}
