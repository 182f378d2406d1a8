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
