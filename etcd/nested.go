package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// folders are what follows the prefix in the keys of records and what belongs to them.
var folders = append([]string{"w/", "f/"}, letters[:]...)

// apart makes sure that no other store has keys among ours, nor we among its: "a/n/"
// has them where "a/" keeps its names, and a sweep there would take locks for names, or
// for sessions, and change them. It runs once our own epoch is there, so of two stores
// that begin at the same time at least one sees the other; one that is the first here
// takes its epoch back.
func (s *Store) apart(ctx context.Context, first bool) error {
	outer, _, err := s.outside(ctx)
	inner := s.prefix
	if err == nil && outer == "" && first {
		outer = s.prefix
		inner, err = s.inside(ctx)
	}
	if err != nil || outer == "" || inner == "" {
		return err
	}
	err = errAmong(inner, outer)
	if first {
		err = errors.Join(err, s.leave(ctx))
	}
	return err
}

func errAmong(inner, outer string) error {
	return fmt.Errorf("prefix %q is among the keys of prefix %q, which is in use: each would take the other's locks for its own. Choose another", inner, outer)
}

// outside is another prefix in use among whose keys ours are. hidden are those that we
// may not read.
func (s *Store) outside(ctx context.Context) (outer string, hidden []string, err error) {
	for i := 1; i < len(s.prefix); i++ {
		if !slices.ContainsFunc(folders, func(f string) bool { return strings.HasPrefix(s.prefix[i:], f) }) {
			continue
		}
		resp, err := s.get(ctx, s.prefix[:i]+"epoch")
		switch {
		case errors.Is(err, rpctypes.ErrPermissionDenied):
			hidden = append(hidden, s.prefix[:i])
		case err != nil:
			return "", nil, err
		case len(resp.Kvs) > 0 && baseOf(resp.Kvs[0].Value) > 0:
			return s.prefix[:i], nil, nil
		}
	}
	return "", hidden, nil
}

// inside is a prefix in use that is among our keys. It looks at all keys that there are;
// the first store finds none, unless the epoch was deleted. Keys of fences are left out,
// since they may look like an epoch.
func (s *Store) inside(ctx context.Context) (inner string, err error) {
	for _, f := range folders {
		from, end := s.prefix+f, clientv3.GetPrefixRangeEnd(s.prefix+f)
		for more := f != "f/"; more; {
			page, err := s.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(10_000), clientv3.WithKeysOnly())
			if err != nil {
				return "", err
			}
			for _, kv := range page.Kvs {
				from = string(kv.Key) + "\x00"
				if !strings.HasSuffix(string(kv.Key), "epoch") {
					continue
				}
				resp, err := s.get(ctx, string(kv.Key))
				if err != nil {
					return "", err
				}
				if len(resp.Kvs) > 0 && baseOf(resp.Kvs[0].Value) > 0 {
					return strings.TrimSuffix(string(kv.Key), "epoch"), nil
				}
			}
			more = page.More
		}
	}
	return "", nil
}

func (s *Store) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return send(ctx, true, func(ctx context.Context) (*clientv3.GetResponse, error) { return s.client.Get(ctx, key, opts...) })
}

// leave removes the epoch that this store has just written.
func (s *Store) leave(ctx context.Context) error {
	e, _ := s.now()
	_, err := send(ctx, true, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(s.epochKey()), "=", e.revision)).
			Then(clientv3.OpDelete(s.epochKey())).Commit()
	})
	return err
}
