package stores

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
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
	return &Store{Store: s, Registers: inEtcd{s, c, settings.Get("prefix")}, Native: true, close: c.Close}, nil
}

type inEtcd struct {
	s      *etcd.Store
	client *clientv3.Client
	prefix string
}

func (r inEtcd) key(name string) string { return r.prefix + "registers/" + name }

func (r inEtcd) Make(ctx context.Context, names ...string) error {
	for _, name := range names {
		if _, err := r.client.Put(ctx, r.key(name), "{}"); err != nil {
			return err
		}
	}
	return nil
}

// Put has the transaction depend on the lock; where the lock's store is wrapped,
// and so no store of etcd's, on the tokens that are kept with the value.
func (r inEtcd) Put(ctx context.Context, lock *holdfast.Lock, value int64) (Verdict, error) {
	k := r.key(lock.Name())
	if !r.Strict(lock) {
		text, err := json.Marshal(guarded{Value: value})
		if err != nil {
			return Unsent, err
		}
		_, err = etcd.Fence(ctx, []*holdfast.Lock{lock}, clientv3.OpPut(k, string(text)))
		switch {
		case err == nil:
			return Taken, nil
		case errors.Is(err, holdfast.ErrLost):
			return Refused, err
		}
		return Ambiguous, err
	}
	for {
		g, revision, err := r.get(ctx, lock.Name())
		if err != nil {
			return Unsent, err
		}
		if err := g.put(lock, value); err != nil {
			return Refused, err
		}
		text, err := json.Marshal(g)
		if err != nil {
			return Unsent, err
		}
		resp, err := r.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(k), "=", revision)).Then(clientv3.OpPut(k, string(text))).Commit()
		if err != nil {
			return Ambiguous, err
		}
		if resp.Succeeded {
			return Taken, nil
		}
	}
}

func (r inEtcd) get(ctx context.Context, name string) (g guarded, revision int64, err error) {
	resp, err := r.client.Get(ctx, r.key(name))
	if err != nil {
		return g, 0, err
	}
	if len(resp.Kvs) == 0 {
		return g, 0, fmt.Errorf("no register %q", name)
	}
	return g, resp.Kvs[0].ModRevision, json.Unmarshal(resp.Kvs[0].Value, &g)
}

func (r inEtcd) Get(ctx context.Context, name string) (int64, error) {
	g, _, err := r.get(ctx, name)
	return g.Value, err
}

func (r inEtcd) Strict(lock *holdfast.Lock) bool { return lock.Store() != driver.Store(r.s) }
