package etcd

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

// connect makes a client of the cluster that tests share.
func connect(t testing.TB) *clientv3.Client {
	t.Helper()
	return dial(t, servers.EtcdThree(t, nil).Endpoints())
}

func dial(t testing.TB, endpoints []string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// fresh is a prefix that nobody has used, and is emptied at the end.
func fresh(t testing.TB, c *clientv3.Client) string {
	prefix := "test/" + strings.ToLower(rand.Text()[:10]) + "/"
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := c.Delete(ctx, prefix, clientv3.WithPrefix()); err != nil {
			t.Error(err)
		}
	})
	return prefix
}

func open(t testing.TB, c *clientv3.Client, prefix string) *Store {
	t.Helper()
	s, err := New(t.Context(), c, &Options{Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// reopened is a store that tests open twice, as two processes would.
type reopened struct{ *Store }

func (r reopened) Reopen(t *testing.T) driver.Store {
	return reopened{open(t, connect(t), r.prefix)}
}

// Close is what the store's user does, who has made the client.
func (r reopened) Close() error { return r.client.Close() }

func TestStore(t *testing.T) {
	t.Parallel()
	drivertest.Run(t, func(t *testing.T) driver.Store {
		c := connect(t)
		return reopened{open(t, c, fresh(t, c))}
	})
}

// Nobody writes without the lock (P4).
func TestFences(t *testing.T) {
	t.Parallel()
	drivertest.RunFence(t, func(t *testing.T) drivertest.Fenced {
		c := connect(t)
		prefix := fresh(t, c)
		return drivertest.Fenced{Store: open(t, c, prefix), Other: open(t, connect(t), prefix),
			Put: func(ctx context.Context, value string, _ func(), locks ...*holdfast.Lock) error {
				_, err := Fence(ctx, locks, clientv3.OpPut(prefix+"registers/"+locks[0].Name(), value))
				return err
			},
			Get: func(ctx context.Context, name string) (string, error) {
				resp, err := c.Get(ctx, prefix+"registers/"+name)
				if err != nil || len(resp.Kvs) == 0 {
					return "", err
				}
				return string(resp.Kvs[0].Value), nil
			}}
	})
}

func TestClients(t *testing.T) {
	t.Parallel()
	clienttest.Run(t, func(t *testing.T) driver.Store {
		c := connect(t)
		return reopened{open(t, c, fresh(t, c))}
	})
}
