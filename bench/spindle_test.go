package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"github.com/flowerinthenight/spindle/v2"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/memory"
	store "github.com/holdfast-lock/holdfast/spanner"
)

// The release between two others of docs/migrate/spindle.md, beside spindle's own and Holdfast's.

// A seat of spindle's; its *Lock is one.
type spindleSeat interface{ HasLock() (bool, uint64) }

var _ spindleSeat = (*spindle.Lock)(nil)

// leadBoth leads while this process has spindle's lock and Holdfast's seat.
func leadBoth(ctx context.Context, old spindleSeat, seat *holdfast.Election, lead func(context.Context, *holdfast.Lock) error) error {
	for ctx.Err() == nil {
		if has, _ := old.HasLock(); !has { // spindle's, which was started by Run as before
			pause(ctx, time.Second)
			continue
		}
		stand, resign := context.WithCancel(ctx)
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			defer resign() // lead's context ends with it
			for has := true; has && stand.Err() == nil; has, _ = old.HasLock() {
				pause(stand, time.Second)
			}
		}()
		err := seat.Run(stand, lead)
		resign()
		<-watched
		if !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return ctx.Err()
}

// pause sleeps, unless ctx is done.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// A throne sees who leads: never two at once.
type throne struct {
	t     *testing.T
	mu    sync.Mutex
	now   string
	seen  []string // each who led, once in a row
	moved chan string
}

func (x *throne) enter(who string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.now != "" && x.now != who {
		x.t.Errorf("%s leads, and so does %s", x.now, who)
	}
	x.now = who
	if len(x.seen) == 0 || x.seen[len(x.seen)-1] != who {
		x.seen = append(x.seen, who)
	}
	select {
	case x.moved <- who:
	default:
	}
}

func (x *throne) leave(who string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.now == who {
		x.now = ""
	}
}

// last is who led last.
func (x *throne) last() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.seen[len(x.seen)-1]
}

// await waits until one of a kind leads.
func (x *throne) await(ctx context.Context, kind string) {
	x.t.Helper()
	for {
		select {
		case who := <-x.moved:
			if strings.HasPrefix(who, kind) {
				return
			}
		case <-ctx.Done():
			x.mu.Lock()
			defer x.mu.Unlock()
			x.t.Fatalf("nobody of %s came to lead; there led %q", kind, x.seen)
		}
	}
}

// A world is where candidates of the three releases stand for one seat.
type world struct {
	old    func(ctx context.Context, who string) (seat spindleSeat, ended func()) // spindle's lock, running
	client func(who string) *holdfast.Client
}

// generations replaces three programs with spindle's lock by three that stand for both, one by
// one, and those by three with Holdfast's seat.
func generations(t *testing.T, w world, x *throne, within time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	lead := func(who string) func(context.Context, *holdfast.Lock) error {
		return func(ctx context.Context, _ *holdfast.Lock) error {
			x.enter(who)
			defer x.leave(who)
			<-ctx.Done()
			return context.Cause(ctx)
		}
	}
	// start starts a program; it returns what ends it, and waits.
	start := func(program func(ctx context.Context)) func() {
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			program(ctx)
		}()
		return func() { cancel(); <-done }
	}
	original := func(who string) func() {
		return start(func(ctx context.Context) {
			seat, ended := w.old(ctx, who)
			defer ended()
			for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
				if has, _ := seat.HasLock(); has { // what it does as the leader takes no time
					x.enter(who)
					x.leave(who)
				}
			}
		})
	}
	bridged := func(who string) func() {
		return start(func(ctx context.Context) {
			seat, ended := w.old(ctx, who)
			defer ended()
			c := w.client(who)
			defer c.Close()
			if err := leadBoth(ctx, seat, c.Election("seat"), lead(who)); !errors.Is(err, context.Canceled) {
				t.Error(who, err)
			}
		})
	}
	ours := func(who string) func() {
		return start(func(ctx context.Context) {
			c := w.client(who)
			defer c.Close()
			if err := c.Election("seat").Run(ctx, lead(who)); !errors.Is(err, context.Canceled) {
				t.Error(who, err)
			}
		})
	}
	type program struct {
		who string
		end func()
	}
	var running []program
	run := func(kind string, start func(who string) func()) {
		for i := range 3 {
			who := fmt.Sprintf("%s %d", kind, i)
			running = append(running, program{who, start(who)})
			if len(running) <= 3 {
				continue
			}
			time.Sleep(300 * time.Millisecond)
			leads, end := x.last(), 0
			if running[0].who == leads && i < 2 { // the leader goes last
				end = 1
			}
			running[end].end()
			running = slices.Delete(running, end, end+1)
		}
		x.await(ctx, kind)
	}
	run("spindle", original)
	run("both", bridged)
	run("holdfast", ours)
	for _, p := range running {
		p.end()
	}
	t.Logf("there led: %s", strings.Join(x.seen, ", "))
}

// On Spanner's emulator, with spindle itself.
func TestSpindleGenerations(t *testing.T) {
	at := strings.TrimPrefix(servers.Spanner(t, nil).Database(t), "spanner://")
	db, err := spanner.NewClientWithConfig(t.Context(), at, spanner.ClientConfig{DisableNativeMetrics: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	admin, err := database.NewDatabaseAdminClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if err := store.Migrate(t.Context(), admin, db, nil); err != nil {
		t.Fatal(err)
	}
	op, err := admin.UpdateDatabaseDdl(t.Context(), &databasepb.UpdateDatabaseDdlRequest{Database: at, Statements: spannerTables[1:]})
	if err == nil {
		err = op.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	generations(t, world{
		old: func(ctx context.Context, who string) (spindleSeat, func()) {
			l := spindle.New(db, spindleTable, "seat", spindle.WithId(who), spindle.WithDuration(1000), spindle.WithLogger(noLog))
			done := make(chan error, 1)
			l.Run(ctx, done)
			return l, func() {}
		},
		client: func(who string) *holdfast.Client {
			s, err := store.New(context.Background(), db, nil)
			if err != nil {
				t.Error(err)
			}
			c, err := holdfast.New(s, &holdfast.Options{Owner: holdfast.Owner{Name: who}})
			if err != nil {
				t.Error(err)
			}
			return c
		},
	}, &throne{t: t, moved: make(chan string, 1)}, 2*time.Minute)
}

// A spindleModel is a table of spindle's with one lock: who has it, and the last heartbeat. Who
// finds no heartbeat for a duration and a second takes it.
type spindleModel struct {
	mu     sync.Mutex
	holder *modelSeat
	beat   time.Time
}

type modelSeat struct {
	table  *spindleModel
	active bool // by the mutex of the table
}

const modelDuration = 2 * time.Second

func (x *spindleModel) run(ctx context.Context) (*modelSeat, func()) {
	s := &modelSeat{table: x}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			x.mu.Lock()
			s.active = true
			if x.holder == s || time.Since(x.beat) > modelDuration+time.Second {
				x.holder, x.beat = s, time.Now()
			}
			x.mu.Unlock()
			select {
			case <-time.After(modelDuration / 2):
			case <-ctx.Done():
			}
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		s.active = false
	}()
	return s, func() { <-done }
}

func (s *modelSeat) HasLock() (bool, uint64) {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return s.active && s.table.holder == s, 0
}

// The same with a model of spindle and a store in memory, on a clock that takes no time.
func TestSpindleGenerationsModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, table := memory.New(), new(spindleModel)
		generations(t, world{
			old: func(ctx context.Context, _ string) (spindleSeat, func()) { return table.run(ctx) },
			client: func(who string) *holdfast.Client {
				c, err := holdfast.New(s, &holdfast.Options{Owner: holdfast.Owner{Name: who}, RuntimeDir: os.DevNull})
				if err != nil {
					t.Error(err)
				}
				return c
			},
		}, &throne{t: t, moved: make(chan string, 1)}, time.Hour)
	})
}
