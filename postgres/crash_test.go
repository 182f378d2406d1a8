package postgres

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

// The server is killed while clients take and give back locks, so that releases
// are lost that did not wait for the disk: no token is given twice or goes back,
// and no name stays blocked, neither by a session that lives on nor by one that
// does not.
func TestCrash(t *testing.T) {
	t.Parallel()
	server := servers.Postgres(t, &servers.Options{})
	if !server.Own {
		t.Skip("this needs a server of its own")
	}
	ctx := t.Context()
	if err := Migrate(ctx, connect(t, server.URL), nil); err != nil {
		t.Fatal(err)
	}
	rounds := 4
	if testing.Short() {
		rounds = 1
	}
	const ttl = 3 * time.Second
	const names = 5
	newClient := func() *holdfast.Client {
		c, err := holdfast.New(open(t, connect(t, server.URL), nil), &holdfast.Options{TTL: ttl, RuntimeDir: os.DevNull})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	living := []*holdfast.Client{newClient(), newClient()}

	var mu sync.Mutex
	last := make(map[string]int64) // token of a name
	var locked, failed int
	take := func(c *holdfast.Client, name string, patience time.Duration) error {
		within, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		l, err := c.Acquire(within, name)
		if err != nil {
			return err
		}
		mu.Lock()
		locked++
		if l.Token() <= last[name] {
			t.Errorf("%s: token %d after %d", name, l.Token(), last[name])
		}
		last[name] = max(last[name], l.Token())
		mu.Unlock()
		return l.Release(within)
	}
	for round := range rounds {
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for i, c := range living {
			for n := range names {
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if err := take(c, fmt.Sprintf("%d", n), 10*time.Second); err != nil {
							mu.Lock()
							failed++
							mu.Unlock()
						}
						// Names of its own, whose releases nobody makes durable but by chance.
						if err := take(c, fmt.Sprintf("own %d %d", i, n), 10*time.Second); err != nil {
							mu.Lock()
							failed++
							mu.Unlock()
						}
					}
				})
			}
		}
		time.Sleep(300*time.Millisecond + time.Duration(round)*37*time.Millisecond) // the work goes on meanwhile
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			mu.Lock()
			enough := locked >= 100*(round+1)
			mu.Unlock()
			if enough {
				break
			}
		}
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		close(stop)
		if err := server.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		after := newClient()
		for name := range last {
			if err := take(after, name, 4*ttl); err != nil {
				t.Errorf("round %d: %s stays blocked: %v", round, name, err)
			}
		}
	}
	t.Logf("%d locks, %d attempts failed", locked, failed)
	if locked < 100 {
		t.Errorf("only %d locks were taken", locked)
	}
}
