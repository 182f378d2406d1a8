package etcd

import (
	"context"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

// Fence carries out operations in one transaction, on the condition that each lock
// is still held with its token: if it is not, nothing is done, and the error is
// ErrLost. Locks have to be from a Store of this package.
//
//	err := etcd.Fence(ctx, []*holdfast.Lock{lock}, clientv3.OpPut("jobs/nightly", "done"))
//
// What others do with a lock that is held, such as to wait for it, does not make Fence
// fail: it tries again. If an answer is lost, the operations may have been done.
func Fence(ctx context.Context, locks []*holdfast.Lock, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	stores, err := storesOf(locks)
	if err != nil {
		return nil, err
	}
	for {
		cmps, keep, err := Compare(ctx, locks...)
		if err != nil {
			return nil, err
		}
		resp, err := stores[0].client.Txn(ctx).If(cmps...).Then(append(keep, ops...)...).Commit()
		if err != nil {
			return nil, fmt.Errorf("fence %q: it may have been done: %w", locks[0].Name(), err)
		}
		if resp.Succeeded {
			resp.Responses = resp.Responses[len(keep):]
			return resp, nil
		}
	}
}

// Compare is Fence for a transaction of the caller's own. It returns comparisons, which
// hold as long as the locks are held and nobody comes to wait for them, and operations
// that have to be among those of its Then; there are none if each claim has had one holder
// alone. If the transaction does not succeed, and its other comparisons
// hold, call Compare again: it returns ErrLost if a lock is lost.
//
//	cmps, keep, err := etcd.Compare(ctx, lock)
//	...
//	resp, err := client.Txn(ctx).If(cmps...).Then(append(keep, mine...)...).Commit()
//
// The transaction depends on nothing but the cluster: it does no harm if it comes late,
// from a process that was frozen.
func Compare(ctx context.Context, locks ...*holdfast.Lock) (cmps []clientv3.Cmp, keep []clientv3.Op, err error) {
	stores, err := storesOf(locks)
	if err != nil {
		return nil, nil, err
	}
	for i, l := range locks {
		if err := l.Err(); err != nil {
			return nil, nil, l.FenceFailed(ctx, fmt.Errorf("fence %q: %w", l.Name(), err))
		}
		c, k, err := stores[i].compare(ctx, l.Name(), l.Token())
		if err != nil {
			return nil, nil, l.FenceFailed(ctx, err)
		}
		cmps, keep = append(cmps, c...), append(keep, k...)
	}
	return cmps, keep, nil
}

// storesOf returns the store of each lock, all of one client.
func storesOf(locks []*holdfast.Lock) (stores []*Store, err error) {
	if len(locks) == 0 {
		return nil, driver.ErrNothingFenced
	}
	for _, l := range locks {
		s, err := driver.StoreOf[*Store](l, "one of etcd")
		if err != nil {
			return nil, err
		}
		if stores = append(stores, s); s.client != stores[0].client {
			return nil, fmt.Errorf("fence %q: the lock is from another client than %q", l.Name(), locks[0].Name())
		}
	}
	return stores, nil
}

// compare asks for the record of a name, and returns what Compare does.
func (s *Store) compare(ctx context.Context, name string, token int64) (cmps []clientv3.Cmp, keep []clientv3.Op, err error) {
	k, f := s.key(driver.Key{Space: driver.Names, Name: name}), s.fenceKey(name)
	resp, e, err := s.transact(ctx, true, func(epoch) []clientv3.Op { return []clientv3.Op{clientv3.OpGet(k), clientv3.OpGet(f)} })
	if err != nil {
		return nil, nil, fmt.Errorf("fence %q: %w", name, err)
	}
	held, fenced := (*clientv3.GetResponse)(resp.Responses[0].GetResponseRange()), resp.Responses[1].GetResponseRange().Kvs
	var last, lastRevision int64
	if len(fenced) > 0 {
		lastRevision = fenced[0].ModRevision
		if last, err = strconv.ParseInt(string(fenced[0].Value), 10, 64); err != nil {
			return nil, nil, fmt.Errorf("fence %q: key %q is not ours: %w", name, f, err)
		}
	}
	rec := record(e, held.Kvs...)
	next, err := rec.Fence(name, token, last)
	if err != nil {
		return nil, nil, err
	}
	cmps = []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(s.epochKey()), "=", e.revision),
		clientv3.Compare(clientv3.ModRevision(k), "=", rec.Version-e.base),
	}
	if next != last || last > 0 { // a hand-off in memory may change nothing but this
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(f), "=", lastRevision))
	}
	if next != last {
		keep = append(keep, clientv3.OpPut(f, strconv.FormatInt(next, 10)))
	}
	return cmps, keep, nil
}
