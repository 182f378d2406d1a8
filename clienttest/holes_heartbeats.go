package clienttest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/faultstore"
	"github.com/holdfast-lock/holdfast/internal/wire"
)

// heartbeatHoles are about heartbeats.
var heartbeatHoles = []holeCase{
	{
		name:  "marks of earlier heartbeats",
		holes: "H5",
		rule:  "a slow holder that answers each mark with a heartbeat is not dead by marks of earlier ones, however long that goes on",
		runs:  once(markedAgainAndAgain),
	},
	{
		name:  "heartbeat that changes nothing",
		holes: "H7",
		rule:  "a heartbeat that changes nothing has lost, and its holder learns so at once, not when its time is over",
		runs: each(func(h *clients, becomes string) {
			l := h.take(h.client(0), time.Second)
			k := h.session()
			r := h.load(k)
			value := map[string]string{
				"a tombstone": strings.TrimSuffix(string(r.Value), "}") + `,"dead":1,"by":"nobody"}`,
				"another's":   strings.Replace(string(r.Value), `"nonce":"`, `"nonce":"0`, 1),
				"nothing":     "",
			}[becomes]
			h.write(k, r.Version, []byte(value))
			time.Sleep(beat + time.Second)
			h.lost(l)
		}, "a tombstone", "another's", "nothing"),
	},
	{
		name:  "many heartbeats",
		holes: "H8",
		rule:  "heartbeats are counted in whole numbers, however many there have been: one more is another one",
		runs: each(func(h *clients, many int64) {
			var to atomic.Pointer[driver.Key]
			a, way := h.join()
			way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
				if k := to.Load(); k == nil && wire.IsBeat(writes[0]) {
					to.Store(&writes[0].Key)
				}
				// The session counts from 1; in the store its count begins after many.
				for i, w := range writes {
					if wire.IsBeat(w) {
						writes[i].Value = renumber(w.Value, many)
					}
				}
				outs, err := send()
				for i := range outs {
					if writes[i].Key.Space == driver.Sessions {
						outs[i].Record.Value = renumber(outs[i].Record.Value, -many)
					}
				}
				return outs, err
			})
			l := h.take(a, time.Second)
			queued := h.queue(1, h.client(0), "a")
			time.Sleep(20 * holdfast.DefaultTTL)
			h.holds(l)
			if v := string(h.load(*to.Load()).Value); !strings.Contains(v, fmt.Sprintf(`"beat":%d`, many/1000)[:8]) {
				h.Errorf("beats are not counted from %d: %s", many, v)
			}
			h.release(l)
			h.holds(h.granted(queued, 5*time.Second))
		}, 1<<24, 1<<53, 1<<60),
	},
	{
		name:  "heartbeats pass locks",
		holes: "H11",
		rule:  "heartbeats do not hang with calls for locks: what is held stays held",
		runs: once(func(h *clients) {
			a, way := h.join()
			l := h.take(a, time.Second)
			hang := make(chan bool)
			before(way, wire.IsClaim, func() { <-hang })
			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(h.ctx, 5*holdfast.DefaultTTL)
					defer cancel()
					a.Acquire(ctx, fmt.Sprint("other", i))
				})
			}
			for range 4 {
				time.Sleep(holdfast.DefaultTTL)
				h.holds(l)
			}
			close(hang)
			all.Wait()
			h.holds(l)
		}),
	},
}

func markedAgainAndAgain(h *clients) {
	a, way := h.join()
	l := h.take(a, time.Second)
	var slow atomic.Bool
	way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
		if slow.Load() && wire.IsBeat(writes[0]) {
			return nil, faultstore.ErrFault
		}
		return send()
	})
	var marks atomic.Int64
	for i := range 3 {
		c, way := h.join()
		way.SetMeet(func(writes []driver.Write, send wire.Send) ([]driver.Outcome, error) {
			outs, err := send()
			if err == nil && outs[0].Won && strings.Contains(string(writes[0].Value), `"suspected":`) {
				marks.Add(1)
			}
			return outs, err
		})
		ctx, cancel := context.WithCancel(h.ctx)
		defer cancel()
		go func() { // it is not always the same client that waits
			for ctx.Err() == nil {
				c.Acquire(ctx, "a", holdfast.MaxWait(time.Duration(i+2)*holdfast.DefaultTTL))
			}
		}()
	}
	const times = 12
	for range times {
		slow.Store(true)
		time.Sleep(holdfast.DefaultTTL / 2)
		slow.Store(false)
		time.Sleep(holdfast.DefaultTTL / 5)
		if l.Err() != nil {
			h.Fatalf("after %d marks: %v", marks.Load(), l.Err())
		}
		h.holds(l)
	}
	if marks.Load() < times/2 {
		h.Errorf("it was asked for a heartbeat %d times only", marks.Load())
	}
}

// renumber adds to the number of a heartbeat.
func renumber(value []byte, by int64) []byte {
	before, after, ok := strings.Cut(string(value), `"beat":`)
	if !ok {
		return value
	}
	digits, rest, _ := strings.Cut(after, ",")
	var n int64
	fmt.Sscan(digits, &n)
	return fmt.Appendf(nil, `%s"beat":%d,%s`, before, n+by, rest)
}
