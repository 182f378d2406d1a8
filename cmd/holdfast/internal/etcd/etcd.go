// Package etcd opens stores in an etcd for the command.
package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/engine"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/etcd"
)

// Engine is that of etcd.
var Engine = engine.Engine{Open: open}

func open(ctx context.Context, at engine.Place) (driver.Store, func() error, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints:            at.Hosts,
		DialTimeout:          2 * time.Second, // of each host; they are tried in turn
		DialKeepAliveTime:    2 * time.Second, // so that a host that is gone is noticed before a lease ends
		DialKeepAliveTimeout: 2 * time.Second,
		Username:             at.User,
		Password:             at.Password,
		TLS:                  at.TLS,
		Logger:               zap.NewNop(), // what goes wrong is told by errors
	})
	if err != nil {
		return nil, nil, err
	}
	s, err := etcd.New(ctx, c, &etcd.Options{Prefix: at.Prefix})
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return s, c.Close, nil
}
