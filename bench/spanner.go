package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"github.com/flowerinthenight/spindle/v2"
	spindlelock "github.com/flowerinthenight/spindle/v2/lock"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/holdfast-lock/holdfast/internal/servers"
	store "github.com/holdfast-lock/holdfast/spanner"
)

const (
	spannerStore = "spanner"
	// spannerDisk is with each row: what an emulator takes says nothing of Spanner.
	spannerDisk  = "nothing: an emulator's figures, not Spanner's"
	spannerMeans = "on an emulator, which runs one transaction at a time; each system has a database of its own"
	spindleMeans = "; lease 1s, the least that it takes, and 15s in waiters; its default is 10s"
)

var spannerSystems = []*system{
	{
		store: spannerStore, name: "two transactions", of: "two transactions", in: "latency", disk: spannerDisk,
		means: spannerMeans + "; each reads a row and writes it", open: openTransactions,
	}, {
		store: spannerStore, name: "spindle", of: "two transactions", in: "latency handoff waiters", disk: spannerDisk,
		means: spannerMeans + spindleMeans + "; v2.2.0, a new Lock each time; who holds is who HasLock says so to, after a round that met no leader", open: openSpindle,
	}, {
		store: spannerStore, name: "spindle/lock", of: "two transactions", in: "latency handoff waiters", disk: spannerDisk,
		means: spannerMeans + spindleMeans + "; package lock of v2.2.0, which is on v1.2.7; a new one each time", open: openSpindleLock,
	}, {
		store: spannerStore, name: "holdfast", of: "two transactions", in: "latency handoff waiters", disk: spannerDisk,
		means: spannerMeans + "; TTL 15s; no notifications, so it polls, less often the longer it waits", open: openSpanner,
	},
}

// spindleTable is the one that spindle's README has its users create.
const spindleTable = "locktable"

// spannerTables are those of the systems that are not Holdfast.
var spannerTables = []string{
	`create table bare (name string(max) not null, version timestamp not null options (allow_commit_timestamp = true), value bytes(max)) primary key (name)`,
	`create table ` + spindleTable + ` (
		name string(max) not null,
		heartbeat timestamp options (allow_commit_timestamp = true),
		token timestamp options (allow_commit_timestamp = true),
		writer string(max),
	) primary key (name)`,
}

// isSpindle says whether a system is spindle, which gives nothing back: who is
// next waits until a lease has ended.
func (s *system) isSpindle() bool { return strings.HasPrefix(s.name, "spindle") }

// spindleLease is the lease that it has in a workload.
func spindleLease(o options) time.Duration { return max(o.TTL, time.Second) }

// spindleEnds is how long after its last heartbeat others may have a lock: it allows
// for a second more.
func spindleEnds(o options) time.Duration { return spindleLease(o) + time.Second }

// spannerClient connects a system to its database. All its calls are counted.
func spannerClient(ctx context.Context, at *site, system string) (*spanner.Client, error) {
	counted, err := spannerTally(at)
	if err != nil {
		return nil, err
	}
	return spanner.NewClientWithConfig(ctx, at.Databases[system], spanner.ClientConfig{DisableNativeMetrics: true},
		option.WithGRPCDialOption(grpc.WithStatsHandler(callCounter{counted})))
}

func spannerTally(at *site) (*tally, error) { return sharedTally(at.Dir+"/spanner-tally", "") }

// rpcs are those of this process.
var rpcs atomic.Int64

// A callCounter counts the calls that gRPC sends, those that it sends again too.
type callCounter struct{ t *tally }

func (c callCounter) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	c.t.add(info.FullMethodName)
	rpcs.Add(1)
	return ctx
}

func (callCounter) HandleRPC(context.Context, stats.RPCStats) {}

func (callCounter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (callCounter) HandleConn(context.Context, stats.ConnStats) {}

func openSpanner(ctx context.Context, at *site, o options) (locker, error) {
	c, err := spannerClient(ctx, at, "holdfast")
	if err != nil {
		return nil, err
	}
	shut := func() error { c.Close(); return nil }
	s, err := store.New(ctx, c, nil)
	if err != nil {
		return nil, errors.Join(err, shut())
	}
	return newClient(at, s, o, shut)
}

// transactions are the two that a lock cannot do without.
type transactions struct{ c *spanner.Client }

func openTransactions(ctx context.Context, at *site, o options) (locker, error) {
	c, err := spannerClient(ctx, at, "two transactions")
	return &transactions{c}, err
}

func (f *transactions) write(ctx context.Context, name string, value []byte) error {
	_, err := f.c.ReadWriteTransaction(ctx, func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		if _, err := txn.ReadRow(ctx, "bare", spanner.Key{name}, []string{"version", "value"}); err != nil && !errors.Is(err, spanner.ErrRowNotFound) {
			return err
		}
		return txn.BufferWrite([]*spanner.Mutation{
			spanner.InsertOrUpdate("bare", []string{"name", "version", "value"}, []any{name, spanner.CommitTimestamp, value}),
		})
	})
	return err
}

func (f *transactions) lock(ctx context.Context, name string) (held, error) {
	if err := f.write(ctx, name, bareValue); err != nil {
		return nil, err
	}
	return unlocker(func() error { return f.write(context.WithoutCancel(ctx), name, nil) }), nil
}

func (f *transactions) close() error { f.c.Close(); return nil }

var noLog = log.New(io.Discard, "", 0)

// spindles runs spindle's loop, in the hands of somebody who asks whether the lock
// is had no more often than that can change.
type spindles struct {
	c     *spanner.Client
	lease time.Duration
}

func openSpindle(ctx context.Context, at *site, o options) (locker, error) {
	c, err := spannerClient(ctx, at, "spindle")
	return &spindles{c, spindleLease(o)}, err
}

func (s *spindles) lock(ctx context.Context, name string) (held, error) {
	var said atomic.Int32 // by the last round: '0' another leads, '1' we do; 0: nobody did
	l := spindle.New(s.c, spindleTable, name, spindle.WithDuration(s.lease.Milliseconds()), spindle.WithLogger(noLog),
		spindle.WithLeaderCallback(nil, func(_ any, msg []byte) { said.Store(int32(msg[0])) }))
	loop, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	stop := func() error { cancel(); return <-done }
	if err := l.Run(loop, done); err != nil {
		cancel()
		return nil, err
	}
	round := int64(0)
	for pause := time.Millisecond; ; pause = min(pause+pause/8, 10*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), stop())
		}
		if l.Iterations() == round {
			continue
		}
		round = l.Iterations()
		now := said.Swap(0)
		leads := now == '1'
		if now == 0 {
			leads, _ = l.HasLock()
		}
		if leads {
			return unlocker(stop), nil
		}
	}
}

func (s *spindles) close() error { s.c.Close(); return nil }

// spindleLocks uses spindle's package lock.
type spindleLocks struct {
	c     *spanner.Client
	lease time.Duration
}

func openSpindleLock(ctx context.Context, at *site, o options) (locker, error) {
	c, err := spannerClient(ctx, at, "spindle/lock")
	return &spindleLocks{c, spindleLease(o)}, err
}

func (s *spindleLocks) lock(ctx context.Context, name string) (held, error) {
	l := spindlelock.NewSpindleLock(&spindlelock.SpindleLockOptions{
		Client: s.c, Table: spindleTable, Name: name, Duration: s.lease.Milliseconds(), Logger: noLog,
	})
	if err := l.Lock(ctx); err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	return unlocker(l.Unlock), nil
}

func (s *spindleLocks) close() error { s.c.Close(); return nil }

// startSpanner starts an emulator, with a database for each system.
func startSpanner(b *bench) (*server, error) {
	started, err := servers.StartSpanner(b.ctx, nil)
	if err != nil {
		return nil, err
	}
	s := &server{version: started.Name}
	s.stopped(b, started)
	if err := s.prepareSpanner(b, started); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *server) prepareSpanner(b *bench, started *servers.Server) error {
	if err := os.Setenv("SPANNER_EMULATOR_HOST", started.Addr()); err != nil { // the players' too
		return err
	}
	admin, err := database.NewDatabaseAdminClient(b.ctx)
	if err != nil {
		return err
	}
	defer admin.Close()
	instance, _, _ := strings.Cut(strings.TrimPrefix(started.URL, "spanner://"), "/databases/")
	b.site.Databases = make(map[string]string)
	for i, of := range spannerSystems {
		name := fmt.Sprintf("bench%d", i)
		op, err := admin.CreateDatabase(b.ctx, &databasepb.CreateDatabaseRequest{
			Parent: instance, CreateStatement: "create database " + name, ExtraStatements: spannerTables,
		})
		if err == nil {
			_, err = op.Wait(b.ctx)
		}
		if err != nil {
			return err
		}
		b.site.Databases[of.name] = instance + "/databases/" + name
	}
	c, err := spannerClient(b.ctx, &b.site, "holdfast")
	if err != nil {
		return err
	}
	defer c.Close()
	if err := store.Migrate(b.ctx, admin, c, nil); err != nil {
		return err
	}
	counted, err := spannerTally(&b.site)
	if err != nil {
		return err
	}
	s.requests = func(ctx context.Context) (total float64, err error) {
		kinds, err := counted.kinds(ctx)
		for _, n := range kinds {
			total += n
		}
		return total, err
	}
	s.kinds = counted.kinds
	return nil
}

// handOver measures what it takes from one that lets go until one that has been
// waiting for a while holds, when nobody else wants the lock.
func handOver(b *bench, ss []*system) (rows []Row, err error) {
	var runs []run
	for _, s := range ss {
		runs = append(runs, run{name: s.name, round: func() (series, error) {
			took, err := b.handOver(s)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			return series{took.Seconds()}, nil
		}})
	}
	n := max(1, b.rounds/2)
	taken, err := b.take(n, false, runs)
	if err != nil {
		return nil, err
	}
	for i, s := range ss {
		row := taken[i].row(s.row("one lets go, one waits"), "ms", 1e3)
		if of := slices.IndexFunc(ss, func(o *system) bool { return o.name == s.kind().beside }); of != i {
			row.Ratio, row.Of = taken[i].ratio(taken[of]), ss[of].name
		}
		all := slices.Concat(taken[i]...)
		row = row.notes("%s to %s ms, of %d", figure(slices.Min(all)*1e3), figure(slices.Max(all)*1e3), n)
		if s.isSpindle() {
			row.Note += fmt.Sprintf("; lease %v", spindleLease(options{}))
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (b *bench) handOver(s *system) (time.Duration, error) {
	ps, err := b.players(2, "crash", s, options{})
	if err != nil {
		return 0, err
	}
	holder, next := ps[0], ps[1]
	defer dismiss(ps)
	b.round++
	if err := holder.order("take over/%d", b.round); err != nil {
		return 0, err
	}
	if _, err := holder.expect("has"); err != nil {
		return 0, err
	}
	if err := next.order("take over/%d", b.round); err != nil {
		return 0, err
	}
	// At any moment of the rounds of both.
	if err := b.sleep(time.Second + rand.N(time.Second)); err != nil {
		return 0, err
	}
	at := monotonic()
	holder.orders.Close()
	has, err := next.stamp("has")
	return time.Duration(has - at), err
}

// shareRows tell what waiters in one process, and one who holds, cost in a second.
func shareRows(s *system, n, names int, waits, holds, cpu float64, o options) []Row {
	lease := ""
	if s.isSpindle() {
		lease = fmt.Sprintf("; lease %v", spindleLease(o))
	}
	row := func(what string, rate float64) Row {
		r := s.row(what)
		r.Unit, r.Median = s.kind().requests+"/s", rate
		return r
	}
	what := fmt.Sprintf("%s on %s", several(n, "waiter"), several(names, "name"))
	rows := []Row{row(what, waits).notes("%.3f/s for each; %.1f %% of a CPU%s", waits/float64(n), cpu*100, lease)}
	if n == 1 || names > 1 {
		rows = append(rows, row("who holds "+several(names, "name"), holds).notes("%.3f/s for each%s", holds/float64(names), lease))
	}
	return rows
}

func several(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
