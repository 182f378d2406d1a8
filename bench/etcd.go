package main

import (
	"context"
	"errors"
	"time"

	etcd "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	store "github.com/holdfast-lock/holdfast/etcd"
)

const etcdDisk = "each write"

var etcdSystems = []*system{
	{
		store: "etcd", name: "PUT, DELETE", of: "PUT, DELETE", in: "latency throughput", disk: etcdDisk, means: "three members",
		open: func(ctx context.Context, at *site, o options) (locker, error) {
			c, err := etcdClient(at)
			return &etcdFloor{c}, err
		},
	}, {
		store: "etcd", name: "concurrency.Mutex", of: "PUT, DELETE", in: "latency throughput handoff held crash waiters",
		disk: etcdDisk, means: "three members; one session per process, TTL 60s",
		open: openEtcd,
	}, {
		store: "etcd", name: "holdfast", of: "PUT, DELETE", in: "latency throughput handoff held crash waiters serve",
		disk: etcdDisk, means: "three members", open: openHoldfastEtcd,
	},
}

func etcdClient(at *site) (*etcd.Client, error) {
	return etcd.New(etcd.Config{Endpoints: at.Etcd, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
}

func openHoldfastEtcd(ctx context.Context, at *site, o options) (locker, error) {
	c, err := etcdClient(at)
	if err != nil {
		return nil, err
	}
	s, err := store.New(ctx, c, nil)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return newClient(at, s, o, c.Close)
}

type etcdFloor struct{ c *etcd.Client }

func (f *etcdFloor) lock(ctx context.Context, name string) (held, error) {
	if _, err := f.c.Put(ctx, name, string(bareValue)); err != nil {
		return nil, err
	}
	return unlocker(func() error { _, err := f.c.Delete(context.WithoutCancel(ctx), name); return err }), nil
}

func (f *etcdFloor) close() error { return f.c.Close() }

type etcdLocker struct {
	c *etcd.Client
	s *concurrency.Session
}

func openEtcd(ctx context.Context, at *site, o options) (locker, error) {
	c, err := etcdClient(at)
	if err != nil {
		return nil, err
	}
	var opts []concurrency.SessionOption
	if o.TTL > 0 {
		opts = append(opts, concurrency.WithTTL(int(o.TTL/time.Second)))
	}
	s, err := concurrency.NewSession(c, opts...)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &etcdLocker{c, s}, nil
}

func (e *etcdLocker) lock(ctx context.Context, name string) (held, error) {
	m := concurrency.NewMutex(e.s, name)
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	return unlocker(func() error { return m.Unlock(context.WithoutCancel(ctx)) }), nil
}

func (e *etcdLocker) close() error { return errors.Join(e.s.Close(), e.c.Close()) }
