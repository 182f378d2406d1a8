package stores

import (
	"context"
	"net/url"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-lock/holdfast/etcd"
)

// openEtcd connects to etcd://HOST:PORT,HOST:PORT,HOST:PORT?prefix=PREFIX.
func openEtcd(ctx context.Context, target string) (*Store, error) {
	hosts, query, _ := strings.Cut(strings.TrimPrefix(target, "etcd://"), "?")
	settings, err := url.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(hosts, ","), DialTimeout: 2 * time.Second,
		DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: 2 * time.Second, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, err
	}
	s, err := etcd.New(ctx, c, &etcd.Options{Prefix: settings.Get("prefix")})
	if err != nil {
		c.Close()
		return nil, err
	}
	return &Store{Store: s, Registers: inEtcd{s, c, settings.Get("prefix")}, close: c.Close}, nil
}
