package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-lock/holdfast/driver"
)

// A sample says when a revision was reached: etcd does not say when a key was written,
// only at which revision. A store takes samples in memory and, when it sweeps, in a key
// for all stores. A key that has not changed since a revision older than idle has been
// unchanged for that long.
type sample struct {
	At       int64 `json:"at"` // microseconds since 1970, by the clock of the store that noted it
	Revision int64 `json:"revision"`
}

// How many samples are kept, and how far apart in memory and for all stores.
const (
	maxSamples   = 64
	memorySample = 10 * time.Millisecond
	sharedSample = time.Minute
)

// sample notes the time of a revision that a transaction has shown.
func (s *Store) sample(revision int64) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.highest = max(s.highest, revision); len(s.samples) == 0 || now.Sub(s.samples[len(s.samples)-1].time()) >= memorySample {
		s.samples = thin(append(s.samples, sample{now.UnixMicro(), s.highest}))
	}
}

func (s sample) time() time.Time { return time.UnixMicro(s.At) }

// thin leaves out a sample if there are too many: the one without which the gap between
// its neighbours is smallest for its age.
func thin(all []sample) []sample {
	if len(all) <= maxSamples {
		return all
	}
	last := all[len(all)-1].At
	best, least := 1, 2.0
	for i := 1; i < len(all)-1; i++ {
		gap := float64(all[i+1].At-all[i-1].At) / float64(last-all[i-1].At+1)
		if gap < least {
			best, least = i, gap
		}
	}
	return slices.Delete(all, best, best+1)
}

// before is the highest revision known to have been reached by then.
func before(all []sample, t time.Time) (revision int64) {
	for _, s := range all {
		if !s.time().After(t) {
			revision = max(revision, s.Revision)
		}
	}
	return revision
}

// Traits implements driver.Store.
func (s *Store) Traits() driver.Traits { return driver.Traits{CostlyWrites: true, TellsRecords: true} }

// Sweep removes keys that have held nothing for at least idle by the clocks of the
// stores that noted revisions; if they are wrong, keys go earlier or later, and
// nothing else happens. No floor is needed: a key that is written again has a
// revision above all before. Nothing goes if no revision that old was noted.
// Keys that woke somebody a minute ago go as well, with the records that they carry, and
// so do fences' tokens of names that no longer have a record: all tokens to come are
// larger. These are not counted.
func (s *Store) Sweep(ctx context.Context, idle time.Duration) (removed int, err error) {
	shared, err := s.share(ctx)
	if err != nil {
		return 0, fmt.Errorf("etcd: sweep: %w", err)
	}
	began := time.Now()
	s.mu.Lock()
	all, highest := append(shared, s.samples...), s.highest
	s.mu.Unlock()
	old := before(all, began.Add(-idle))
	if idle <= 0 {
		old = highest
	}
	for _, part := range []swept{
		{prefix: s.space(driver.Names), upTo: old},
		{prefix: s.space(driver.Sessions), upTo: old},
		{prefix: s.space(driver.Settings), upTo: old},
		{prefix: s.space(driver.Audits), upTo: old},
		{prefix: s.space(driver.Histories), upTo: old},
		{prefix: s.prefix + "w/", upTo: before(all, began.Add(-time.Minute)), filled: true},
		{prefix: s.prefix + "f/", upTo: old, filled: true, without: s.space(driver.Names)},
	} {
		if part.upTo == 0 {
			continue
		}
		n, err := s.sweepPart(ctx, part)
		if !part.filled {
			removed += n
		}
		if err != nil {
			return removed, fmt.Errorf("etcd: sweep: %w", err)
		}
	}
	return removed, nil
}

// share notes the current revision for all stores, and returns what they have noted.
func (s *Store) share(ctx context.Context) (all []sample, err error) {
	k := s.sweptKey()
	resp, _, err := s.transact(ctx, true, func(epoch) []clientv3.Op { return []clientv3.Op{clientv3.OpGet(k)} })
	if err != nil {
		return nil, err
	}
	var revision int64
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		revision = kvs[0].ModRevision
		if json.Unmarshal(kvs[0].Value, &all) != nil {
			all = nil
		}
	}
	now := time.Now()
	all = slices.DeleteFunc(all, func(s sample) bool { return s.Revision > resp.Header.Revision || s.time().After(now) })
	if len(all) > 0 && now.Sub(all[len(all)-1].time()) < sharedSample {
		return all, nil
	}
	all = thin(append(all, sample{now.UnixMicro(), resp.Header.Revision}))
	value, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	_, _, err = s.transact(ctx, true, func(epoch) []clientv3.Op {
		return []clientv3.Op{clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(k), "=", revision)}, []clientv3.Op{clientv3.OpPut(k, string(value))}, nil)}
	})
	return all, err
}

// swept are the keys below a prefix that have not changed since a revision.
type swept struct {
	prefix  string
	upTo    int64
	filled  bool   // also those with a value
	without string // only those for which there is no key below this prefix
}

// sweepPart removes keys.
func (s *Store) sweepPart(ctx context.Context, part swept) (removed int, err error) {
	from, end := part.prefix, clientv3.GetPrefixRangeEnd(part.prefix)
	for {
		page, err := send(ctx, true, func(ctx context.Context) (*clientv3.GetResponse, error) {
			opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(1000)}
			if part.filled {
				opts = append(opts, clientv3.WithKeysOnly())
			}
			return s.client.Get(ctx, from, opts...)
		})
		if err != nil {
			return removed, err
		}
		type empty struct {
			key      string
			revision int64
		}
		var gone []empty
		for _, kv := range page.Kvs {
			if (part.filled || len(kv.Value) == 0) && kv.ModRevision <= part.upTo {
				gone = append(gone, empty{string(kv.Key), kv.ModRevision})
			}
			from = string(kv.Key) + "\x00"
		}
		for some := range slices.Chunk(gone, maxOps) {
			resp, _, err := s.transact(ctx, true, func(epoch) (ops []clientv3.Op) {
				for _, e := range some {
					cmps := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(e.key), "=", e.revision)}
					if part.without != "" {
						cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(part.without+strings.TrimPrefix(e.key, part.prefix)), "=", 0))
					}
					ops = append(ops, clientv3.OpTxn(cmps, []clientv3.Op{clientv3.OpDelete(e.key)}, nil))
				}
				return ops
			})
			if err != nil {
				return removed, err
			}
			for _, r := range resp.Responses {
				if r.GetResponseTxn().Succeeded {
					removed++
				}
			}
		}
		if !page.More {
			return removed, nil
		}
	}
}
