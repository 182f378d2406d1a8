package etcd

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-lock/holdfast/driver"
)

// Options of New; nil and the zero value of each field are the defaults.
type Options struct {
	// Prefix is what all keys begin with; by default "holdfast/". One that is among the
	// keys of another Holdfast prefix, as apps/ is among those of app, is refused.
	Prefix string
	// ReadOnly is for a client with holdfast.Options.ReadOnly: the user needs the permission to
	// read the keys of the prefix, and nothing else.
	ReadOnly bool
}

// DefaultPrefix is what all keys begin with unless Options say otherwise.
const DefaultPrefix = "holdfast/"

// A Store keeps records below a prefix of an etcd cluster. It is a driver.Store,
// Watcher and Diagnoser.
type Store struct {
	client *clientv3.Client
	prefix string
	looks  bool // nothing is written

	mu      sync.Mutex
	epoch   epoch
	highest int64    // highest revision seen in this epoch
	samples []sample // of it, the oldest first
}

var (
	_ driver.Store     = (*Store)(nil)
	_ driver.Watcher   = (*Store)(nil)
	_ driver.Diagnoser = (*Store)(nil)
)

// An epoch says what revisions mean. A record's version is its revision above a
// base, the time in microseconds at which the prefix was first used: a cluster that
// is made anew counts from 1, and its versions have to be above those before.
type epoch struct {
	base     int64
	revision int64 // of the epoch's key; every transaction compares it
}

// ErrWentBack says that the cluster has forgotten what it had confirmed, as after a restore from a
// backup. Answers are refused while its revision is below the highest that this store saw.
var ErrWentBack = errors.New("the cluster has gone back to an earlier state: when the restore is complete, delete its key")

// New makes a store on a client, which stays the caller's. The cluster has to
// answer; the first to use a prefix writes one key there.
//
// After a restore from a backup without --bump-revision, delete the key
// holdfast/epoch before anything uses the cluster: tokens then go on above those
// given before.
func New(ctx context.Context, client *clientv3.Client, opts *Options) (*Store, error) {
	s := &Store{client: client, prefix: DefaultPrefix}
	if opts != nil && opts.Prefix != "" {
		s.prefix = opts.Prefix
	}
	s.looks = opts != nil && opts.ReadOnly
	first, err := s.open(ctx)
	if err == nil {
		err = s.apart(ctx, first)
	}
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return s, nil
}

// Keys, below the prefix:
//
//	epoch           the base of versions
//	swept           which revisions were reached when, for sweeps
//	n/NAME          records, by space
//	w/WHO/n/NAME    written anew to wake WHO, in hexadecimal: the base and the record of n/NAME
//	f/NAME          the highest token that passed a fence, where tokens are handed on in memory
func (s *Store) epochKey() string { return s.prefix + "epoch" }
func (s *Store) sweptKey() string { return s.prefix + "swept" }

var letters = [...]string{driver.Names: "n/", driver.Sessions: "s/", driver.Settings: "c/", driver.Audits: "a/", driver.Histories: "h/"}

func (s *Store) space(space driver.Space) string { return s.prefix + letters[space] }

func (s *Store) key(k driver.Key) string { return s.space(k.Space) + k.Name }

func (s *Store) wakes(who string) string {
	return s.prefix + "w/" + hex.EncodeToString([]byte(who)) + "/"
}

func (s *Store) fenceKey(name string) string { return s.prefix + "f/" + name }

// open learns the epoch, or begins one: then this store is the first to use the prefix.
func (s *Store) open(ctx context.Context) (first bool, err error) {
	s.mu.Lock()
	old := s.epoch.base + s.highest
	s.mu.Unlock()
	base := max(time.Now().UnixMicro(), old+1)
	k := s.epochKey()
	begin := []clientv3.Op{clientv3.OpPut(k, strconv.FormatInt(base, 10))}
	if s.looks {
		begin = nil
	}
	resp, err := send(ctx, true, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(k), "=", 0)).
			Then(begin...).
			Else(clientv3.OpGet(k)).Commit()
	})
	if err != nil {
		return false, err
	}
	e := epoch{base, resp.Header.Revision}
	if s.looks && resp.Succeeded {
		e = epoch{} // nobody has used the prefix yet
	}
	if !resp.Succeeded {
		if e, err = readEpoch(resp); err != nil {
			return false, err
		}
	}
	s.adopt(e, resp.Header.Revision)
	return resp.Succeeded && !s.looks, nil
}

func readEpoch(resp *clientv3.TxnResponse) (epoch, error) {
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return epoch{}, nil
	}
	base := baseOf(kvs[0].Value)
	if base <= 0 {
		return epoch{}, fmt.Errorf("key %q says %q, which is not ours: choose another prefix", kvs[0].Key, kvs[0].Value)
	}
	return epoch{base, kvs[0].ModRevision}, nil
}

// baseOf is what the key of an epoch says, or 0 if it is not one.
func baseOf(value []byte) int64 {
	base, _ := strconv.ParseInt(string(value), 10, 64)
	return max(base, 0)
}

// adopt makes an epoch the store's. If it is over already, the next transaction
// says so.
func (s *Store) adopt(e epoch, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch, s.highest, s.samples = e, revision, nil
}

// now is the epoch and the highest revision that was seen.
func (s *Store) now() (epoch, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch, s.highest
}

// orClosed is the error of a call, or ErrClosed if the user has closed the client.
func (s *Store) orClosed(err error) error {
	if s.client.Ctx().Err() != nil {
		return driver.ErrClosed
	}
	return err
}

// transact carries out operations if the epoch is still the one that the store knows.
// If it is over, nothing was carried out, and ops is called again with the new epoch.
func (s *Store) transact(ctx context.Context, again bool, ops func(epoch) []clientv3.Op) (resp *clientv3.TxnResponse, e epoch, err error) {
	for {
		e, before := s.now()
		resp, err = send(ctx, again, func(ctx context.Context) (*clientv3.TxnResponse, error) {
			if s.client.Ctx().Err() != nil {
				return nil, driver.ErrClosed
			}
			return s.client.Txn(ctx).
				If(clientv3.Compare(clientv3.ModRevision(s.epochKey()), "=", e.revision)).
				Then(ops(e)...).
				Else(clientv3.OpGet(s.epochKey())).Commit()
		})
		switch {
		case err != nil:
			return nil, e, s.orClosed(err)
		case resp.Succeeded && resp.Header.Revision < before:
			return nil, e, fmt.Errorf("revision %d after %d: %w %s", resp.Header.Revision, before, ErrWentBack, s.epochKey())
		case resp.Succeeded:
			s.sample(resp.Header.Revision)
			return resp, e, nil
		}
		next, err := readEpoch(resp)
		if err != nil {
			return nil, e, err
		}
		if next.revision == 0 {
			if _, err := s.open(ctx); err != nil {
				return nil, e, err
			}
			continue
		}
		s.adopt(next, resp.Header.Revision)
	}
}

// How long to wait for one member: a client asks them in turn, and one of them may
// be frozen, or cut off, so there has to be time for another. A request that may be
// sent again waits only briefly at first: with one of three frozen, every third meets it.
const (
	slow    = 2500 * time.Millisecond
	quick   = 500 * time.Millisecond
	minWait = 250 * time.Millisecond
	rest    = 50 * time.Millisecond // between attempts, when members are gone or know no leader yet
)

// send asks a member. One that knows of no leader has not done anything, so another
// is asked. One that does not answer may have, so another is asked only if again says
// that the request may be sent again.
func send[T any](ctx context.Context, again bool, ask func(context.Context) (T, error)) (answer T, err error) {
	for try := 0; ; try++ {
		wait := slow
		if again && try == 0 {
			wait = quick
		}
		if end, ok := ctx.Deadline(); ok {
			wait = min(max(time.Until(end)/2, minWait), wait)
		}
		one, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), wait)
		answer, err = ask(one)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, rpctypes.ErrNoLeader) && !(again && silent(err)) {
			return answer, err
		}
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return answer, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// silent says that a member has not answered, or not in time.
func silent(err error) bool {
	code := status.Code(err)
	return errors.Is(err, context.DeadlineExceeded) || code == codes.Unavailable || code == codes.DeadlineExceeded
}

// Limits of one transaction: etcd refuses more than 128 operations and more than
// 1.5 MiB by default.
const (
	maxOps   = 100
	maxBytes = 1 << 20
	maxTxns  = 8 // at a time, of one call
)

// Load reads the keys in transactions that go through the cluster's leader.
func (s *Store) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	for _, k := range keys {
		if err := k.Check(); err != nil {
			return nil, fmt.Errorf("etcd: %w", err)
		}
	}
	recs := make([]driver.Record, len(keys))
	var rest []int // keys that are read one by one
	for space := range driver.Histories + 1 {
		var at []int
		for i, k := range keys {
			if k.Space == space {
				at = append(at, i)
			}
		}
		done := false
		if len(at) >= manyKeys {
			var err error
			if done, err = s.loadRange(ctx, keys, at, recs); err != nil {
				return nil, fmt.Errorf("etcd: read: %w", err)
			}
		}
		if !done {
			rest = append(rest, at...)
		}
	}
	for part := range slices.Chunk(rest, maxOps) {
		resp, e, err := s.transact(ctx, true, func(epoch) (ops []clientv3.Op) {
			for _, i := range part {
				ops = append(ops, clientv3.OpGet(s.key(keys[i])))
			}
			return ops
		})
		if err != nil {
			return nil, fmt.Errorf("etcd: read: %w", err)
		}
		for j, r := range resp.Responses {
			recs[part[j]] = record(e, (*clientv3.GetResponse)(r.GetResponseRange()).Kvs...)
		}
	}
	return recs, nil
}

// manyKeys is how many keys of one space make Load read a range: the names that one process waits
// for are mostly neighbours.
const manyKeys = 64

// loadRange reads the keys at these places, and whatever lies between them. It reports false if
// that is too much.
func (s *Store) loadRange(ctx context.Context, keys []driver.Key, at []int, recs []driver.Record) (ok bool, err error) {
	places := make(map[string][]int, len(at))
	first, last := s.key(keys[at[0]]), ""
	for _, i := range at {
		key := s.key(keys[i])
		places[key] = append(places[key], i)
		first, last = min(first, key), max(last, key)
	}
	resp, e, err := s.transact(ctx, true, func(epoch) []clientv3.Op {
		return []clientv3.Op{clientv3.OpGet(first, clientv3.WithRange(last+"\x00"), clientv3.WithLimit(int64(2*len(at))))}
	})
	if err != nil {
		return false, err
	}
	found := (*clientv3.GetResponse)(resp.Responses[0].GetResponseRange())
	if found.More {
		return false, nil
	}
	for _, i := range at {
		recs[i] = record(e)
	}
	for _, kv := range found.Kvs {
		for _, i := range places[string(kv.Key)] {
			recs[i] = record(e, kv)
		}
	}
	return true, nil
}

// record is what a key holds. It has no age, since the users of the store share no clock.
func record(e epoch, kvs ...*mvccpb.KeyValue) driver.Record {
	if len(kvs) == 0 {
		return driver.Record{Age: -1}
	}
	rec := driver.Record{Version: e.base + kvs[0].ModRevision, Age: -1}
	if len(kvs[0].Value) > 0 {
		rec.Value = kvs[0].Value
	}
	return rec
}

// CompareAndSwap carries out each write as a transaction of its own within one that
// carries up to a hundred.
func (s *Store) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	for _, w := range writes {
		if err := w.Check(); err != nil {
			return nil, fmt.Errorf("etcd: %w", err)
		}
	}
	outs := make([]driver.Outcome, len(writes))
	parts := split(writes)
	if len(parts) == 1 {
		return outs, s.write(ctx, writes, outs)
	}
	room := make(chan struct{}, maxTxns)
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	at := 0
	for i, part := range parts {
		out := outs[at : at+len(part)]
		at += len(part)
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			if errs[i] = s.write(ctx, part, out); errs[i] != nil {
				for j := range out {
					out[j] = driver.Outcome{Err: errs[i]}
				}
			}
		})
	}
	wg.Wait()
	if !slices.Contains(errs, nil) {
		return nil, errs[0]
	}
	return outs, nil
}

// split cuts writes into parts that each go into one transaction.
func split(writes []driver.Write) (parts [][]driver.Write) {
	first, size := 0, 0
	for i, w := range writes {
		n := len(w.Value) + 2*len(w.Key.Name) + 200
		if w.Notify != "" {
			n += min(len(w.Value), maxTold)
		}
		if i > first && (size+n > maxBytes || i-first == maxOps) {
			parts = append(parts, writes[first:i])
			first, size = i, 0
		}
		size += n
	}
	return append(parts, writes[first:])
}

// write carries out writes in one transaction.
func (s *Store) write(ctx context.Context, writes []driver.Write, outs []driver.Outcome) error {
	if len(writes) == 0 {
		return nil
	}
	resp, e, err := s.transact(ctx, false, func(e epoch) (ops []clientv3.Op) {
		for _, w := range writes {
			ops = append(ops, s.op(e, w, len(writes) == 1))
		}
		return ops
	})
	if err != nil {
		return fmt.Errorf("etcd: write: %w", err)
	}
	for i, r := range resp.Responses {
		w, nested := writes[i], r.GetResponseTxn()
		switch {
		case nested == nil: // it could not win
			outs[i] = driver.Outcome{Record: record(e, (*clientv3.GetResponse)(r.GetResponseRange()).Kvs...)}
		case nested.Succeeded == (w.Old != driver.IfEmpty):
			rec := driver.Record{Version: e.base + resp.Header.Revision, Age: -1}
			if len(w.Value) > 0 {
				rec.Value = w.Value
			}
			outs[i] = driver.Outcome{Won: true, Record: rec}
		default:
			outs[i] = driver.Outcome{Record: record(e, (*clientv3.GetResponse)(nested.Responses[0].GetResponseRange()).Kvs...)}
		}
	}
	return nil
}

// op is the transaction of one write. The end of a session deletes its key: no version is given
// twice without it, and short programs would leave a key each. Whether a key holds nothing is asked
// the other way round, since no comparison of values holds for a key that is not there.
func (s *Store) op(e epoch, w driver.Write, single bool) clientv3.Op {
	k := s.key(w.Key)
	get := []clientv3.Op{clientv3.OpGet(k)}
	put := []clientv3.Op{clientv3.OpPut(k, string(w.Value))}
	if w.Key.Space == driver.Sessions && len(w.Value) == 0 && w.Old > e.base {
		put[0] = clientv3.OpDelete(k) // nothing has to stay of ids that are used once
	}
	if w.Notify != "" {
		put = append(put, clientv3.OpPut(s.wakes(w.Notify)+letters[w.Key.Space]+w.Key.Name, e.tell(w)))
	}
	if single && w.Key.Space == driver.Sessions && len(w.Value) == 0 {
		put = append(put, clientv3.OpDelete(s.wakes(w.Key.Name), clientv3.WithPrefix())) // nobody listens any more
	}
	switch {
	case w.Old == driver.IfEmpty:
		return clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.Value(k), ">", "")}, get, put)
	case w.Old <= e.base:
		return get[0] // no key has such a revision in this epoch
	}
	return clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(k), "=", w.Old-e.base)}, put, get)
}

// Keys lists names in pages.
func (s *Store) Keys(ctx context.Context, space driver.Space, after string, n int) (names []string, err error) {
	if err := (driver.Key{Space: space, Name: "-"}).Check(); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	prefix := s.space(space)
	from, end := prefix+after+"\x00", clientv3.GetPrefixRangeEnd(prefix)
	if after == "" {
		from = prefix
	}
	for len(names) < n {
		page := min(max(n-len(names), 100), 1000)
		resp, err := send(ctx, true, func(ctx context.Context) (*clientv3.GetResponse, error) {
			return s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(int64(page)))
		})
		if err != nil {
			return nil, fmt.Errorf("etcd: list: %w", s.orClosed(err))
		}
		for _, kv := range resp.Kvs {
			if len(kv.Value) > 0 && len(names) < n {
				names = append(names, strings.TrimPrefix(string(kv.Key), prefix))
			}
			from = string(kv.Key) + "\x00"
		}
		if !resp.More {
			break
		}
	}
	return names, nil
}

// Watch watches the keys that are written to wake somebody. It ends if changes that it
// has not reported yet were compacted, and then has to be called again.
func (s *Store) Watch(ctx context.Context, who []string, changed func(driver.Notification)) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	prefixes := []string{s.prefix + "w/"}
	if who != nil {
		prefixes = nil
		for _, w := range append(slices.Clone(who), driver.Everyone) {
			prefixes = append(prefixes, s.wakes(w))
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	all := s.watchAll(ctx, &wg, prefixes)
	begun := 0
	for {
		var resp clientv3.WatchResponse
		select {
		case resp = <-all:
		case <-ctx.Done():
			return ctx.Err()
		}
		switch err := resp.Err(); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("etcd: watch: %w", s.orClosed(err))
		case resp.Created:
			if begun++; begun == len(prefixes) {
				changed(driver.Notification{})
			}
		}
		for _, ev := range resp.Events {
			if notification, ok := s.notification(string(ev.Kv.Key)); ok {
				e, highest := s.now()
				if value, ok := strings.CutPrefix(string(ev.Kv.Value), e.mark()); ok && ev.Kv.ModRevision >= highest {
					notification.Version, notification.Value = e.base+ev.Kv.ModRevision, value
				}
				changed(notification)
			}
		}
	}
}

// watchAll merges the watches of several prefixes, until ctx ends; wg has their goroutines.
func (s *Store) watchAll(ctx context.Context, wg *sync.WaitGroup, prefixes []string) <-chan clientv3.WatchResponse {
	all := make(chan clientv3.WatchResponse)
	for _, p := range prefixes {
		ch := s.client.Watch(ctx, p, clientv3.WithPrefix(), clientv3.WithCreatedNotify(), clientv3.WithFilterDelete())
		wg.Go(func() {
			for {
				resp, ok := <-ch
				if !ok {
					resp.Canceled = true
				}
				select {
				case all <- resp:
				case <-ctx.Done():
					for range ch {
					}
					return
				}
				if !ok {
					return
				}
			}
		})
	}
	return all
}

// maxTold is the longest record that goes along with a notification. etcd keeps it twice until its
// history is compacted.
const maxTold = 16 << 10

// mark begins the value of a notification. Stores in another epoch ignore that value.
func (e epoch) mark() string { return strconv.FormatInt(e.base, 10) + " " }

// tell is the value of the key that is written to wake somebody: the new record of the name, unless
// that is long.
func (e epoch) tell(w driver.Write) string {
	if w.Key.Space != driver.Names || len(w.Value) == 0 || len(w.Value) > maxTold {
		return ""
	}
	return e.mark() + string(w.Value)
}

// notification is what a key that was written to wake somebody says.
func (s *Store) notification(key string) (h driver.Notification, ok bool) {
	who, rest, _ := strings.Cut(strings.TrimPrefix(key, s.prefix+"w/"), "/")
	wake, err := hex.DecodeString(who)
	if err != nil || len(rest) < 3 {
		return h, false
	}
	space := slices.Index(letters[:], rest[:2])
	if space < 0 {
		return h, false
	}
	return driver.Notification{Key: driver.Key{Space: driver.Space(space), Name: rest[2:]}, To: string(wake)}, true
}
