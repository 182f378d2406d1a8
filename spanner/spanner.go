package spanner

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/spanner"
	"cloud.google.com/go/spanner/apiv1/spannerpb"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-lock/holdfast/driver"
)

// Options of New; nil and the zero value of each field are the defaults.
type Options struct {
	// Prefix is what the table's name begins with; by default "holdfast_".
	Prefix string
}

// A Store keeps records in a table of a Spanner database. It is a driver.Store
// and Diagnoser.
type Store struct {
	client   *spanner.Client
	table    string
	emulated bool
	turn     chan struct{} // of transactions in an emulator, which runs one at a time
}

var (
	_ driver.Store     = (*Store)(nil)
	_ driver.Diagnoser = (*Store)(nil)
)

// New makes a store on a client, which stays the caller's. It compares the table with
// what this program needs, and creates nothing: Migrate does.
//
// Where the environment has SPANNER_EMULATOR_HOST the client talks to an emulator, and
// the store allows for what is different there.
func New(ctx context.Context, client *spanner.Client, opts *Options) (*Store, error) {
	s, err := prepare(client, opts)
	if err == nil {
		err = s.verify(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("spanner: %w", err)
	}
	return s, nil
}

func prepare(client *spanner.Client, opts *Options) (*Store, error) {
	table, err := opts.table()
	return &Store{client: client, table: table, emulated: os.Getenv("SPANNER_EMULATOR_HOST") != "", turn: make(chan struct{}, 1)}, err
}

// prefixForm is what Spanner accepts as the beginning of a table's name. Some words of
// SQL cannot be names, but none of them ends in "records".
var prefixForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,59}$`) })

func (o *Options) table() (string, error) {
	prefix := "holdfast_"
	if o != nil && o.Prefix != "" {
		prefix = o.Prefix
	}
	if !prefixForm().MatchString(prefix) {
		return "", fmt.Errorf("prefix %q is not valid: a letter, then letters, digits and underscores, 60 at most", prefix)
	}
	return prefix + "records", nil
}

// shards is how many ranges of keys a hash spreads rows over: otherwise names that are made
// one after the other would all be written at one end of the table, by one server.
const shards = 16

func shard(k driver.Key) int64 {
	f := fnv.New32a()
	f.Write([]byte{byte(k.Space)})
	f.Write([]byte(k.Name))
	return int64(f.Sum32() % shards)
}

func rowKey(k driver.Key) spanner.Key {
	return spanner.Key{shard(k), int64(k.Space), []byte(k.Name)}
}

// A row is what the table has for a key; the zero row is that of a key that it does not have.
type row struct {
	value   []byte
	version int64
}

var columns = []string{"space", "name", "value", "written"}

// rows gathers what a read returns.
func rows(read *spanner.RowIterator) (map[driver.Key]row, error) {
	found := make(map[driver.Key]row)
	err := read.Do(func(r *spanner.Row) error {
		var space int64
		var name, value []byte
		var written time.Time
		if err := r.Columns(&space, &name, &value, &written); err != nil {
			return err
		}
		found[driver.Key{Space: driver.Space(space), Name: string(name)}] = row{value, written.UnixMicro()}
		return nil
	})
	return found, err
}

func keySet(keys []driver.Key) spanner.KeySet {
	all := make([]spanner.KeySet, len(keys))
	for i, k := range keys {
		all[i] = rowKey(k)
	}
	return spanner.KeySets(all...)
}

// record is the record of a row at a time by Spanner's clock, TrueTime.
func (r row) record(at time.Time) driver.Record {
	rec := driver.Record{Version: r.version}
	if len(r.value) > 0 {
		rec.Value = r.value
	}
	if r.version > 0 {
		rec.Age = max(at.Sub(time.UnixMicro(r.version)), 0)
	}
	return rec
}

// Limits of one read, and of one transaction: Spanner takes 80,000 changed cells and
// 100 MiB. A transaction holds all its rows until it ends, so it is far smaller.
const (
	maxKeys  = 1000
	maxRows  = 200
	maxBytes = 8 << 20
	maxTxns  = 8 // at a time, of one call
)

// Load is strong: it reads at a timestamp that is not before the call. Ages are as of that
// timestamp, so no record seems older than it is.
func (s *Store) Load(ctx context.Context, keys []driver.Key, how driver.Freshness) ([]driver.Record, error) {
	for _, k := range keys {
		if err := k.Check(); err != nil {
			return nil, fmt.Errorf("spanner: %w", err)
		}
	}
	recs := make([]driver.Record, 0, len(keys))
	for part := range slices.Chunk(keys, maxKeys) {
		txn := s.client.Single()
		found, err := rows(txn.Read(ctx, s.table, keySet(part), columns))
		var at time.Time
		if err == nil {
			at, err = txn.Timestamp()
		}
		if err != nil {
			return nil, fmt.Errorf("spanner: read: %w", orClosed(ctx, err))
		}
		for _, k := range part {
			recs = append(recs, found[k].record(at))
		}
	}
	return recs, nil
}

// CompareAndSwap carries out up to 200 writes in one transaction, and several
// transactions at a time.
func (s *Store) CompareAndSwap(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	for _, w := range writes {
		if err := w.Check(); err != nil {
			return nil, fmt.Errorf("spanner: %w", err)
		}
	}
	parts := split(writes)
	outs := make([][]driver.Outcome, len(parts))
	errs := make([]error, len(parts))
	room := make(chan struct{}, maxTxns)
	var wg sync.WaitGroup
	for i, part := range parts {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			if outs[i], errs[i] = s.write(ctx, part); errs[i] != nil {
				errs[i] = fmt.Errorf("spanner: write: %w", errs[i])
				outs[i] = slices.Repeat([]driver.Outcome{{Err: errs[i]}}, len(part))
			}
		})
	}
	wg.Wait()
	if len(parts) > 0 && !slices.Contains(errs, nil) {
		return nil, errs[0]
	}
	return slices.Concat(outs...), nil
}

// split cuts writes into parts that each go into one transaction.
func split(writes []driver.Write) (parts [][]driver.Write) {
	first, size := 0, 0
	for i, w := range writes {
		if i > first && (size+len(w.Value) > maxBytes || i-first == maxRows) {
			parts = append(parts, writes[first:i])
			first, size = i, 0
		}
		size += len(w.Value)
	}
	if first < len(writes) {
		parts = append(parts, writes[first:])
	}
	return parts
}

// write carries out writes in one transaction. It reads the rows anew whenever Spanner
// runs the transaction again.
func (s *Store) write(ctx context.Context, writes []driver.Write) ([]driver.Outcome, error) {
	keys := make([]driver.Key, len(writes))
	for i, w := range writes {
		keys[i] = w.Key
	}
	var found map[driver.Key]row
	at, err := s.transact(ctx, func(ctx context.Context, txn *spanner.ReadWriteTransaction) (err error) {
		// A transaction that reads a row to write it locks it exclusively at once: if two had read it,
		// one of them would have to begin again.
		lock := &spanner.ReadOptions{LockHint: spannerpb.ReadRequest_LOCK_HINT_EXCLUSIVE}
		if found, err = rows(txn.ReadWithOptions(ctx, s.table, keySet(keys), columns, lock)); err != nil {
			return err
		}
		var changes []*spanner.Mutation
		for _, w := range writes {
			if found[w.Key].wins(w) {
				changes = append(changes, s.put(w))
			}
		}
		return txn.BufferWrite(changes)
	})
	if err != nil {
		return nil, err
	}
	outs := make([]driver.Outcome, len(writes))
	for i, w := range writes {
		r := found[w.Key]
		won := r.wins(w)
		if won {
			r = row{w.Value, at.UnixMicro()}
		}
		outs[i] = driver.Outcome{Won: won, Record: r.record(at)}
	}
	return outs, nil
}

// wins says whether a write may follow what a row has.
func (r row) wins(w driver.Write) bool {
	if w.Old == driver.IfEmpty {
		return len(r.value) == 0
	}
	return w.Old > 0 && r.version == w.Old
}

func (s *Store) put(w driver.Write) *spanner.Mutation {
	value := w.Value
	if value == nil {
		value = []byte{} // nil would be NULL
	}
	return spanner.InsertOrUpdate(s.table, []string{"shard", "space", "name", "value", "written"},
		[]any{shard(w.Key), int64(w.Key.Space), []byte(w.Key.Name), value, spanner.CommitTimestamp})
}

// An emulator runs one transaction or schema change at a time, and may answer another
// that it is not found, or failed, where Spanner would make it wait, or run again.
const (
	emulatorTries = 500
	emulatorPause = 10 * time.Millisecond
)

// again repeats what an emulator has refused. With an emulator, the store's transactions
// and schema changes run one after the other.
func (s *Store) again(ctx context.Context, do func() error) error {
	if !s.emulated {
		return orClosed(ctx, do())
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for tries := 1; ; tries++ {
		err := do()
		code := spanner.ErrCode(err)
		gone := code == codes.NotFound && strings.Contains(spanner.ErrDesc(err), "ransaction")
		if err == nil || !gone && code != codes.FailedPrecondition || tries == emulatorTries {
			return orClosed(ctx, err)
		}
		select {
		case <-time.After(emulatorPause):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// orClosed is err, or ErrClosed if the client was closed: anything else that cancels a call also
// ends its context. A call that begins later fails with an invalid session, an error of the client
// that has no code of its own; drivertest notices if its words change.
func orClosed(ctx context.Context, err error) error {
	switch code := spanner.ErrCode(err); {
	case code == codes.Canceled && ctx.Err() == nil,
		code == codes.InvalidArgument && spanner.ErrDesc(err) == "invalid session":
		return driver.ErrClosed
	}
	return err
}

// transact runs a read-write transaction, and says when it was committed.
func (s *Store) transact(ctx context.Context, f func(context.Context, *spanner.ReadWriteTransaction) error) (at time.Time, err error) {
	err = s.again(ctx, func() error {
		resp, err := s.client.ReadWriteTransactionWithOptions(ctx, f, spanner.TransactionOptions{TransactionTag: "holdfast"})
		at = resp.CommitTs
		return err
	})
	return at, err
}

// query runs SQL for the table, at a timestamp that is not before the call.
func (s *Store) query(ctx context.Context, sql string, params map[string]any, each func(r *spanner.Row) error) error {
	return orClosed(ctx, s.client.Single().Query(ctx, s.statement(sql, params)).Do(each))
}

// statement puts the name of the table in place of {records}.
func (s *Store) statement(sql string, params map[string]any) spanner.Statement {
	return spanner.Statement{SQL: expand(sql, s.table), Params: params}
}

// Keys lists names, in the order of their bytes, from all shards.
func (s *Store) Keys(ctx context.Context, space driver.Space, after string, n int) (names []string, err error) {
	if err := (driver.Key{Space: space, Name: "-"}).Check(); err != nil {
		return nil, fmt.Errorf("spanner: %w", err)
	}
	if n <= 0 {
		return nil, nil
	}
	err = s.query(ctx, `select name from unnest(generate_array(0, @last)) as s,
		unnest(array(select name from {records} where shard = s and space = @space and name > @after and byte_length(value) > 0
			order by name limit @n)) as name
		order by name limit @n`,
		map[string]any{"last": int64(shards - 1), "space": int64(space), "after": []byte(after), "n": int64(n)},
		func(r *spanner.Row) error {
			var name []byte
			err := r.Columns(&name)
			names = append(names, string(name))
			return err
		})
	if err != nil {
		return nil, fmt.Errorf("spanner: list: %w", err)
	}
	return names, nil
}

// Traits implements driver.Store.
func (s *Store) Traits() driver.Traits { return driver.Traits{CostlyWrites: true} }

// Sweep removes rows that have held nothing for at least idle by Spanner's clock, with a
// partitioned statement, which locks little at a time and may be run more than once; at
// least removed are gone. No floor is needed: commit timestamps of a row grow even across
// its deletion.
func (s *Store) Sweep(ctx context.Context, idle time.Duration) (removed int, err error) {
	var now time.Time
	err = s.query(ctx, `select current_timestamp()`, nil, func(r *spanner.Row) error { return r.Columns(&now) })
	if err == nil {
		err = s.again(ctx, func() error {
			n, err := s.client.PartitionedUpdate(ctx, s.statement(`delete from {records} where byte_length(value) = 0 and written <= @before`,
				map[string]any{"before": now.Add(-idle)}))
			removed = int(n)
			return err
		})
	}
	if err != nil {
		return removed, fmt.Errorf("spanner: sweep: %w", err)
	}
	return removed, nil
}
