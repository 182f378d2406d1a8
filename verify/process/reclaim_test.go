//go:build linux

package process

import (
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/holdfast-lock/holdfast/verify/process/life"
)

// reclaim takes a lock, waiting for it or asking again and again, and lives under it
// until it is killed.
func reclaim(args []string) error {
	p := newPart()
	ask := p.Bool("ask", false, "do not wait")
	if err := p.begin(args, nil, nil); err != nil {
		return err
	}
	for {
		take := p.client.Acquire
		if *ask {
			take = p.client.TryAcquire
		}
		lock, err := take(p.ctx, p.name)
		if errors.Is(err, holdfast.ErrHeld) {
			time.Sleep(200*time.Millisecond + mrand.N(200*time.Millisecond))
			continue
		}
		if err != nil {
			return err
		}
		l, err := life.Begin(p.lives, "", lock.Token())
		if err != nil {
			return err
		}
		l.For(time.Hour)
	}
}

// A crowd races for a lock whose holder was killed, round after round: exactly one
// has it each time, tokens grow, and no row is left. Half of the crowd waits in line,
// half asks again and again; on one host, where the kernel tells of a death, and each
// on a host of its own, where only time does.
func TestReclaim(t *testing.T) {
	t.Parallel()
	if *full {
		onStores(t, reclaims)
	}
	for _, k := range servers.Kinds {
		if !k.SQL && k.Name != "cassandra" { // where it is not tried
			t.Run(k.Name, func(t *testing.T) { reclaims(t, on(t, k)) })
		}
	}
}

func reclaims(t *testing.T, fresh func(*testing.T) *world) {
	for _, c := range []struct {
		name string
		own  bool
		ttl  int // seconds
	}{{"one host", false, number(2, 10)}, {"hosts of their own", true, number(2, 3)}} {
		t.Run(c.name, func(t *testing.T) {
			if !*full {
				t.Parallel()
				if !c.own {
					t.Skip("SKIPPED: only at the full size")
				}
			}
			w := fresh(t)
			crowd, rounds := w.crowd(number(10, 100)), number(3, 100)
			running := make(map[int]*process)
			n := 0
			begin := func() {
				at := w
				if c.own {
					at = w.host(time.Now().Format("150405.000000000"))
				}
				args := []string{"-ttl", fmt.Sprint(c.ttl, "s")}
				if n++; n%2 == 0 {
					args = append(args, "-ask")
				}
				p := at.program("reclaim", args...)
				running[p.Process.Pid] = p
			}
			for range crowd {
				begin()
			}
			var token int64
			var took figures
			killed := life.Now()
			for round := range rounds {
				won := w.after(token, 1)
				if round > 0 {
					took = append(took, time.Duration(won.Begin-killed))
				}
				if all := w.spans(); len(all) != round+1 {
					t.Fatalf("%d have won in %d rounds", len(all), round+1)
				}
				victim := running[won.PID]
				delete(running, won.PID)
				begin()
				token, killed = won.Token, life.Now()
				victim.signal(syscall.SIGKILL)
				<-victim.done
			}
			w.after(token, 1)
			if all := w.spans(); len(all) != rounds+1 {
				t.Errorf("%d have won in %d rounds", len(all), rounds+1)
			}
			for _, p := range running { // until the last one is dead, some of them win
				p.signal(syscall.SIGKILL)
				<-p.done
			}
			inTurn(t, w.spans())
			t.Logf("figure: %d times a crowd of %d raced for the lock of one that was killed: one winner each, %v after its death; swept clean %v after the last",
				rounds, crowd, took, w.sweep().Round(time.Millisecond))
		})
	}
}
