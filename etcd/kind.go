package etcd

import (
	"context"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/reach"
	"github.com/holdfast-lock/holdfast/internal/tlsurl"
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
	if _, c.TLS, err = tlsurl.Settings(at, nil, at.Kind.Settings); err != nil {
		return c, err
	}
	c.Username, c.Password, err = at.Login()
	return c, err
}
