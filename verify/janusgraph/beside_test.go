//go:build linux

package janusgraph

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cassandra"
	"github.com/holdfast-lock/holdfast/claims"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

// What both kinds lock, and how. Wait is long, because the machine is busy: there
// are eight processes and three nodes on it.
var (
	besideKey    = []byte("vertex 42")
	besideColumn = []byte("name")
)

const (
	besideTable  = "edgestore_lock_"
	besideWait   = 400 * time.Millisecond
	besideExpire = time.Minute
	hold         = 20 * time.Millisecond
	pause        = time.Second // between two turns of one process, on average the half
)

// A turn is how long one process held the lock.
type turn struct {
	Span
	who string
}

// Four processes with JanusGraph's own locker and four with ours want one lock:
// never two have it, both kinds get it, and in the end nothing is left behind.
func TestBesideJanusGraph(t *testing.T) {
	const each = 4
	length := 20 * time.Second
	if *full {
		length = 10 * time.Minute
	}
	began := time.Now()
	target := servers.Cassandra(t, nil).Database(t)
	// The first one makes the table.
	s := Settings{Unit: "MICRO", Wait: besideWait, Expire: besideExpire, Table: besideTable}
	theirs := make([]*Locker, each)
	s.Rid = "janus0"
	theirs[0] = start(t, target, s)
	var starting sync.WaitGroup
	for i := 1; i < each; i++ {
		s := s
		s.Rid = fmt.Sprintf("janus%d", i)
		starting.Go(func() { theirs[i], _ = build(t).Start(t.Context(), target, s) })
	}
	ours := make([]*worker, each)
	for i := range ours {
		starting.Go(func() { ours[i], _ = newWorker(target, fmt.Sprintf("ours%d", i)) })
	}
	starting.Wait()
	for i := range each {
		if theirs[i] == nil || ours[i] == nil {
			t.Fatalf("process %d of a kind does not start", i)
		}
		if i > 0 {
			t.Cleanup(func() { theirs[i].Close() })
		}
	}

	t.Logf("all started after %v", time.Since(began).Round(time.Second))
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	turns := make(chan turn, 1000)
	var wg sync.WaitGroup
	for i := range each {
		wg.Go(func() {
			if err := theirTurns(ctx, theirs[i], fmt.Sprintf("janus%d", i), turns); err != nil {
				t.Errorf("JanusGraph's %d: %v", i, err)
			}
		})
		wg.Go(func() {
			if err := ours[i].run(ctx, turns); err != nil {
				t.Errorf("ours %d: %v", i, err)
			}
		})
	}
	go func() {
		wg.Wait()
		close(turns)
	}()
	var all []turn
	got := map[string]int{}
	for x := range turns {
		all = append(all, x)
		got[x.who]++
		got[strings.TrimRight(x.who, "0123456789")]++
	}
	t.Logf("%d turns in %v: %v; all ended after %v", len(all), length, got, time.Since(began).Round(time.Second))
	for _, fault := range overlaps(all) {
		t.Error(fault)
	}
	for _, kind := range []string{"janus", "ours"} {
		if least := int(length / (20 * time.Second)); got[kind] < least {
			t.Errorf("%s had %d turns in %v, want at least %d", kind, got[kind], length, least)
		}
	}
	db := session(t, target)
	if left := cells(t, db, besideTable); len(left) > 0 {
		t.Errorf("left behind: %x", left)
	}
}

// overlaps says which turns began before another one had ended.
func overlaps(all []turn) (faults []string) {
	slices.SortFunc(all, func(a, b turn) int { return int(a.Began - b.Began) })
	var last turn
	for _, x := range all {
		if x.Began < last.Ended {
			faults = append(faults, fmt.Sprintf("%s had the lock from %v to %v, %s from %v to %v", last.who, last.Began, last.Ended, x.who, x.Began, x.Ended))
		}
		if x.Ended > last.Ended {
			last = x
		}
	}
	return faults
}

func TestOverlaps(t *testing.T) {
	span := func(who string, from, to time.Duration) turn { return turn{Span{from, to}, who} }
	if faults := overlaps([]turn{span("b", 3, 5), span("a", 1, 3), span("c", 5, 6)}); len(faults) > 0 {
		t.Errorf("one after the other, and yet: %v", faults)
	}
	if faults := overlaps([]turn{span("a", 1, 9), span("b", 2, 3), span("c", 8, 10)}); len(faults) != 2 {
		t.Errorf("got %v, want that b and c had it while a had it", faults)
	}
}

func rest(ctx context.Context, longest time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(rand.N(longest)):
	}
}

// theirTurns takes the lock again and again by JanusGraph's locker, as an
// application has to: it does not wait, so what failed is tried again.
func theirTurns(ctx context.Context, l *Locker, who string, turns chan<- turn) error {
	for ctx.Err() == nil {
		locked, err := l.Lock(besideKey, besideColumn)
		var failure *Failure
		if errors.As(err, &failure) && failure.Class == "TemporaryLockingException" {
			rest(ctx, pause/2)
			continue
		} else if err != nil {
			return err
		}
		time.Sleep(hold)
		deleted, err := l.Delete()
		if err != nil {
			return err
		}
		turns <- turn{Span{locked.Ended, deleted.Began}, who}
		rest(ctx, pause)
	}
	return nil
}

// A worker is a process with our locker: this program, started again.
type worker struct {
	who    string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr strings.Builder
}

// newWorker starts a worker, and returns when it can lock.
func newWorker(target, who string) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{who: who, cmd: exec.Command(self, target, who)}
	w.cmd.Env = append(os.Environ(), "JANUSGRAPH_ROLE=ours")
	w.cmd.Stderr = &w.stderr
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	if w.out = bufio.NewScanner(out); !w.out.Scan() {
		return nil, errors.Join(errors.New("it does not start: "+w.stderr.String()), w.cmd.Wait())
	}
	return w, nil
}

// run has it take its turns until ctx is done, and end.
func (w *worker) run(ctx context.Context, turns chan<- turn) error {
	if _, err := io.WriteString(w.in, "go\n"); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { w.in.Close() })()
	for w.out.Scan() {
		x := turn{who: w.who}
		if _, err := fmt.Sscan(w.out.Text(), &x.Began, &x.Ended); err != nil {
			return fmt.Errorf("%q: %w", w.out.Text(), err)
		}
		turns <- x
	}
	if err := w.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, &w.stderr)
	}
	return nil
}

// work is what a worker does: it takes the lock again and again from the first
// line of its standard input to the end of it, and prints when it had it.
func work(target, who string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	db, err := connect(target)
	if err != nil {
		return err
	}
	defer db.Close()
	columns, err := cassandra.NewColumns(ctx, db, path.Base(target), besideTable)
	if err != nil {
		return err
	}
	l, err := claims.New(columns, &claims.Options{Name: who, Unit: claims.Micro, Wait: besideWait, Expire: besideExpire, Skew: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	go func() {
		in.ReadString('\n')
		cancel()
	}()
	for ctx.Err() == nil {
		lock, err := l.Acquire(ctx, besideKey, besideColumn)
		var slow *claims.SlowError
		if errors.As(err, &slow) { // this machine is busy
			rest(ctx, pause)
			continue
		} else if err != nil && ctx.Err() != nil {
			break
		} else if err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		began := Now()
		select {
		case <-time.After(hold):
		case <-lock.Done():
		}
		ended := Now()
		if err := lock.Release(context.Background()); err != nil && !errors.Is(err, holdfast.ErrLost) {
			return fmt.Errorf("release: %w", err)
		}
		fmt.Println(int64(began), int64(ended))
		rest(ctx, pause)
	}
	ending, done := context.WithTimeout(context.Background(), time.Minute)
	defer done()
	return l.Close(ending)
}
