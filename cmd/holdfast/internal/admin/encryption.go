package admin

import (
	"net"
	"net/url"
	"strings"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
)

// encryption reports whether the network can read the password, for databases whose client sends
// it in the clear.
func (d *checkup) encryption(t cli.Target) {
	settings, err := url.ParseQuery(t.Query)
	if t.Kind.SendsPassword == "" || err != nil {
		return
	}
	user, password, err := t.Login()
	hosts, far := farHosts(t)
	switch {
	case err != nil:
	case settings.Get("tls") == "skip-verify":
		d.warn("encryption", "tls=skip-verify: the server's certificate is not checked, so another server could read the password. Use tls=verify")
	case settings.Get("tls")+settings.Get("ca")+settings.Get("cert")+settings.Get("key") != "":
		d.ok("encryption", "TLS, and the servers' certificates are checked")
	case password == "":
		d.ok("encryption", "none, and no password is sent")
	case !far:
		d.ok("encryption", "none, and the servers are on this host")
	default:
		d.warn("encryption", "none: whoever can listen on the way to %s reads the password of %s, and every name and reason. Have the servers encrypt, and add tls=verify to the URL", strings.Join(hosts, ", "), cli.Quote(user))
	}
}

// farHosts returns the hosts of the URL, and whether any of them is not this host.
func farHosts(t cli.Target) (hosts []string, far bool) {
	for host := range strings.SplitSeq(t.Host, ",") {
		name, _, err := net.SplitHostPort(host)
		if err != nil {
			name = host
		}
		name = strings.Trim(name, "[]")
		ip := net.ParseIP(name)
		far = far || name != "localhost" && (ip == nil || !ip.IsLoopback())
		hosts = append(hosts, cli.Escape(name))
	}
	return hosts, far
}
