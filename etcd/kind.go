package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/printable"
	"github.com/holdfast-lock/holdfast/internal/reach"
)

// Kind is an etcd store by its URL:
// etcd://app@etcd1.example,etcd2.example:2379?prefix=KEYS/&tls=verify&ca=FILE&cert=FILE&key=FILE.
// User and password may be in ETCD_USER, ETCD_PASSWORD and ETCD_PASSWORD_FILE.
var Kind = &driver.Kind{
	Name: "etcd", Schemes: []string{"etcd"}, Form: "etcd://…", Example: "etcd://app@etcd1.example,etcd2.example,etcd3.example:2379",
	Server: true, Settings: []string{"prefix"}, Secrets: []string{"ETCD_PASSWORD"}, SendsPassword: "ETCD",
	Open: func(ctx context.Context, at *driver.Location) (s driver.Store, close func() error, err error) {
		config, err := configOf(at)
		if err != nil {
			return nil, nil, err
		}
		var c *clientv3.Client
		err = reach.InTime(ctx, reach.Patience, func(ctx context.Context) (err error) {
			if c, err = clientv3.New(config); err == nil {
				if s, err = New(ctx, c, &Options{Prefix: at.Prefix, ReadOnly: at.ReadOnly}); err != nil {
					c.Close()
				}
			}
			if err != nil && ctx.Err() != nil {
				return reach.WhyNot(context.WithoutCancel(ctx), config.Endpoints, err)
			}
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		return s, reach.Parting(c.Close), nil
	},
}

// configOf is the URL, with what the environment adds to it.
func configOf(at *driver.Location) (c clientv3.Config, err error) {
	c = clientv3.Config{
		DialTimeout:          2 * time.Second, // of each host; they are tried in turn
		DialKeepAliveTime:    2 * time.Second, // so that a host that is gone is noticed before a lease ends
		DialKeepAliveTimeout: 2 * time.Second,
		Logger:               zap.NewNop(), // errors report what goes wrong
	}
	if c.Endpoints, err = at.Hosts("2379"); err != nil {
		return c, err
	}
	if strings.Trim(at.Database, "/") != "" {
		return c, driver.BadURL("etcd: there are no databases in it: what keys begin with is ?prefix=…")
	}
	settings, err := url.ParseQuery(at.Query)
	if err != nil {
		return c, driver.BadURL("the settings of %s cannot be read", at)
	}
	for key := range settings {
		switch {
		case driver.IsSecret(key):
			return c, driver.BadURL("etcd: the password stands behind the user, or in ETCD_PASSWORD, not in %s=", printable.Quote(key))
		case !slices.Contains([]string{"tls", "ca", "cert", "key"}, key):
			return c, at.UnknownSetting(key, "there are tls, ca, cert, key and prefix")
		}
	}
	if c.TLS, err = tlsOf(at, settings); err != nil {
		return c, err
	}
	c.Username, c.Password, err = at.Login()
	return c, err
}

// tlsOf is how to talk to the members; nil: in the clear.
func tlsOf(at *driver.Location, settings url.Values) (*tls.Config, error) {
	ca, cert, key := settings.Get("ca"), settings.Get("cert"), settings.Get("key")
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	switch mode := settings.Get("tls"); {
	case mode == "" && ca+cert+key == "":
		return nil, nil
	case mode == "skip-verify":
		c.InsecureSkipVerify = true
	case mode != "verify" && mode != "":
		return nil, driver.BadURL("etcd: tls is verify or skip-verify; ca, cert and key name files")
	}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, at.BadSettings(err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, driver.BadURL("the settings of %s cannot be used: %s has no certificate", at, printable.Quote(ca))
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, driver.BadURL("the settings of %s cannot be used: cert and key: %s", at, at.Redact(err.Error()))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
