package command

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/engine"
)

var etcdKind = kind{
	example:  "etcd://app@etcd1.example,etcd2.example,etcd3.example:2379",
	server:   true,
	settings: []string{"prefix"},
	program:  "holdfast-etcd",
	open: func(ctx context.Context, t target) (handle, error) {
		at, err := t.etcdCluster()
		if err != nil {
			return handle{}, err
		}
		var h handle
		err = inTime(ctx, patience, func(ctx context.Context) (err error) {
			h.store, h.close, err = linked["etcd"].Open(ctx, at)
			if err != nil && ctx.Err() != nil {
				return whyNot(context.WithoutCancel(ctx), at.Hosts, err)
			}
			return err
		})
		if err != nil {
			return handle{}, err
		}
		return handle{h.store, parting(h.close)}, nil
	},
}

// etcdCluster is the URL, with what the environment adds to it.
func (t target) etcdCluster() (at engine.Place, err error) {
	if at.Hosts, err = t.hosts("2379"); err != nil {
		return at, err
	}
	if strings.Trim(t.address.path, "/") != "" {
		return at, usage("etcd: there are no databases in it: what keys begin with is ?prefix=…")
	}
	at.Prefix = t.prefix
	settings, err := url.ParseQuery(t.address.query)
	if err != nil {
		return at, usage("the settings of %s cannot be read", t)
	}
	for key := range settings {
		switch {
		case secretKey().MatchString(key):
			return at, usage("etcd: the password stands behind the user, or in ETCD_PASSWORD, not in %s=", quote(key))
		case !slices.Contains([]string{"tls", "ca", "cert", "key"}, key):
			return at, usage("etcd: unknown setting %s in --store: there are tls, ca, cert, key and prefix", quote(key))
		}
	}
	if at.TLS, err = t.etcdTLS(settings); err != nil {
		return at, err
	}
	at.User, at.Password, err = t.login("ETCD")
	return at, err
}

// etcdTLS is how to talk to the members; nil: in the clear.
func (t target) etcdTLS(settings url.Values) (*tls.Config, error) {
	ca, cert, key := settings.Get("ca"), settings.Get("cert"), settings.Get("key")
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	switch mode := settings.Get("tls"); {
	case mode == "" && ca+cert+key == "":
		return nil, nil
	case mode == "skip-verify":
		c.InsecureSkipVerify = true
	case mode != "verify" && mode != "":
		return nil, usage("etcd: tls is verify or skip-verify; ca, cert and key name files")
	}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, usage("the settings of %s cannot be used: %s", t, t.redact(err.Error()))
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, usage("the settings of %s cannot be used: %s has no certificate", t, quote(ca))
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, usage("the settings of %s cannot be used: cert and key: %s", t, t.redact(err.Error()))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
