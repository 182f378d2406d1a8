package etcd

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

// A process that waits for hundreds of neighbouring names polls them with one request. Where other
// names lie between them, each is read alone, a hundred in a request.
func TestManyAreOneRequest(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		requests.Add(1)
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: servers.EtcdThree(t, nil).Endpoints(), Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(count)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	s := open(t, c, fresh(t, c))
	var writes []driver.Write
	for i := range 600 {
		writes = append(writes, driver.Write{Key: driver.Names.Key(fmt.Sprintf("%03d", i)), Old: driver.IfEmpty, Value: []byte("1")})
	}
	if _, err := s.CompareAndSwap(t.Context(), writes); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		apart int
		want  int64
	}{{1, 1}, {2, 1}, {3, 3}} {
		var keys []driver.Key
		for i := 0; i < len(writes); i += test.apart {
			keys = append(keys, writes[i].Key)
		}
		before := requests.Load()
		recs, err := s.Load(t.Context(), keys, driver.Fresh)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range recs {
			if string(r.Value) != "1" {
				t.Errorf("%d apart: %q has %+v", test.apart, keys[i].Name, r)
			}
		}
		if got := requests.Load() - before; got != test.want {
			t.Errorf("%d of each %d neighbours were read with %d requests, want %d", len(keys), test.apart, got, test.want)
		}
	}
}
