package clienttest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/faultstore"
)

// lookCases are about Show, List and Watch.
var lookCases = []clientCase{
	{
		name: "show",
		rule: "Show says who holds a name and who waits, in order; a free name is no error, and looking writes nothing",
		run: func(h *clients) {
			if i := h.show("a"); i.Name != "a" || len(i.Holders)+len(i.Waiters)+len(i.Breaks) != 0 {
				h.Errorf("a free name is shown as %+v", i)
			}
			if len(h.keys(driver.Sessions)) != 0 {
				h.Error("a client that only looked has a session")
			}
			if _, err := h.look().Show(h.ctx, ""); err == nil {
				h.Error("Show of no name")
			}
			a := h.clientOf(h.handle(), &holdfast.Options{TTL: longTTL, Owner: holdfast.Owner{Name: "web 7", User: "ana", Address: "10.0.0.1:80", Device: "cnc 4"}})
			before := time.Now()
			l := h.acquire(a, "a", holdfast.Slots(2), holdfast.Reason("ä \"quoted\" <b>"), holdfast.Labels(map[string]string{"ü": "\"7\" <b>"}))
			b := h.client(shortTTL)
			h.queue(1, b, "a")
			h.queue(2, a, "a", holdfast.Shared())
			info := h.show("a")
			if len(info.Holders) != 1 || len(info.Waiters) != 2 {
				h.Fatalf("shown as %+v", info)
			}
			cl := info.Holders[0]
			if cl.Name != "a" || cl.Token != l.Token() || cl.Slots != 2 || cl.Reason != "ä \"quoted\" <b>" || cl.TTL != longTTL || cl.Suspected || cl.Dead || cl.Detached ||
				cl.Labels["ü"] != "\"7\" <b>" || cl.Owner.Name != "web 7" || cl.Owner.User != "ana" || cl.Owner.Address != "10.0.0.1:80" || cl.Owner.Device != "cnc 4" || cl.Owner.PID == 0 || cl.Owner.Host == "" || cl.Owner.Program == "" || cl.Owner.Started.IsZero() {
				h.Errorf("the holder is shown as %+v", cl)
			}
			if since := cl.Requested.Sub(before); since < -time.Millisecond || since > h.soon {
				h.Errorf("it asked %v after the test began", since)
			}
			if held := time.Since(cl.Granted); cl.Granted.IsZero() || held < -time.Millisecond || held > h.soon || cl.Waited < 0 || cl.Waited > h.soon {
				h.Errorf("it has held for %v, after a wait of %v", held, cl.Waited)
			}
			if w := info.Waiters; len(w) > 0 && (!w[0].Granted.IsZero() || w[0].Waited < 0 || w[0].Waited > h.soon) {
				h.Errorf("who waits is shown as %+v", w[0])
			}
			if cl.BeatAge > h.soon {
				h.Errorf("its heartbeat is %v old", cl.BeatAge)
			}
			if w := info.Waiters; w[0].Mode() != "exclusive" || w[0].TTL != shortTTL || w[0].Token != 0 || w[1].Mode() != "shared" || w[1].Owner.Session != cl.Owner.Session || w[1].ID == cl.ID {
				h.Errorf("the waiters are shown as %+v", w)
			}
			own, err := a.Show(h.ctx, "a")
			if err != nil || !own.Holders[0].Own || own.Waiters[0].Own {
				h.Errorf("to the holder it is shown as %+v, error %v", own, err)
			}
		},
	},
	{
		name: "list",
		rule: "List gives the names in use that begin with a prefix, in byte order, and takes no character of it for a pattern",
		run: func(h *clients) {
			c := h.client(longTTL)
			names := []string{"a", "a%", "a%b", "a*", "a/b", "a/b/c", "a_", "a_b", "ab", "aä", "a名", "A", "b", "'", "\\", "~", "z~", "🔒"}
			for i := range 210 { // more than a page
				names = append(names, fmt.Sprintf("page/%03d", i))
			}
			names = append(names, "pagf")
			locks, err := c.AcquireAll(h.ctx, names)
			if err != nil {
				h.Fatal(err)
			}
			free := h.acquire(c, "a/free")
			h.release(free)
			slices.Sort(names)
			for _, prefix := range []string{"", "a", "a%", "a_", "a*", "a/", "a/b/", "A", "ä", "aä", "名", "a名", "page/", "page/1", "page/209", "page/210", "page/2090", "nothing", "'", "\\", "🔒", "\xff"} {
				var want, got []string
				for _, n := range names {
					if len(n) >= len(prefix) && n[:len(prefix)] == prefix {
						want = append(want, n)
					}
				}
				for info, err := range h.look().List(h.ctx, prefix) {
					if err != nil {
						h.Fatal(err)
					}
					if len(info.Holders) != 1 || info.Holders[0].Owner.Host == "" {
						h.Errorf("%q is listed as %+v", info.Name, info)
					}
					got = append(got, info.Name)
				}
				if !slices.Equal(got, want) {
					h.Errorf("with prefix %q: %d names %.200q, want %d", prefix, len(got), got, len(want))
				}
				before := false
				for _, after := range []string{"", "a*", "a/b", "a/b0", "page/100", "z"} {
					if after != "" && after < prefix {
						if before {
							continue // one name before the prefix is as good as another
						}
						before = true
					}
					var rest []string
					for info, err := range h.look().ListAfter(h.ctx, prefix, after) {
						if err != nil {
							h.Fatal(err)
						}
						rest = append(rest, info.Name)
					}
					if at, listed := slices.BinarySearch(want, after); listed {
						want = want[at+1:]
					} else {
						want = want[at:]
					}
					if !slices.Equal(rest, want) {
						h.Errorf("with prefix %q after %q: %d names %.200q, want %d", prefix, after, len(rest), rest, len(want))
					}
				}
			}
			for range h.look().List(h.ctx, "") {
				break // stops
			}
			if err := locks.Release(h.ctx); err != nil {
				h.Fatal(err)
			}
			for info := range h.look().List(h.ctx, "") {
				h.Errorf("%q is listed, and free", info.Name)
			}
			if got := holdfast.SplitName(holdfast.JoinName("a/b", "100%", "")); !slices.Equal(got, []string{"a/b", "100%", ""}) {
				h.Errorf("parts came back as %q", got)
			}
		},
	},
	{
		name: "watch",
		rule: "Watch gives the state now and then each that lasts, once, and ends with ctx",
		run: func(h *clients) {
			ctx, cancel := context.WithCancel(h.ctx)
			states := make(chan holdfast.Info, 100)
			ended := make(chan bool)
			watcher := h.client(0)
			go func() {
				defer close(ended)
				for info, err := range watcher.Watch(ctx, "a") {
					if err != nil {
						h.Error(err)
					}
					states <- info
				}
			}()
			expect := func(what string, holders, waiters, breaks int) (info holdfast.Info) {
				h.Helper()
				select {
				case info = <-states:
				case <-time.After(2*time.Second + h.soon):
					h.Fatalf("nothing was seen of: %s", what)
				}
				if len(info.Holders) != holders || len(info.Waiters) != waiters || len(info.Breaks) != breaks {
					h.Fatalf("seen after %s: %+v", what, info)
				}
				return info
			}
			expect("a free name", 0, 0, 0)
			l := h.acquire(h.client(longTTL), "a")
			if info := expect("a grant", 1, 0, 0); info.Holders[0].Token != l.Token() || info.Holders[0].Owner.Host == "" {
				h.Errorf("seen: %+v", info.Holders[0])
			}
			asked := h.ask(h.client(longTTL), "a")
			expect("one who waits", 1, 1, 0)
			h.release(l)
			next := h.granted(asked, h.soon)
			if info := expect("a grant", 1, 0, 0); info.Holders[0].Token != next.Token() {
				h.Errorf("seen: %+v", info.Holders[0])
			}
			h.release(next)
			expect("a release", 0, 0, 0)
			time.Sleep(1500 * time.Millisecond)
			if len(states) > 0 {
				h.Errorf("seen, and nothing changed: %+v", <-states)
			}
			cancel()
			select {
			case <-ended:
			case <-time.After(h.soon):
				h.Error("Watch goes on after ctx has ended")
			}
		},
	},
	{
		name: "watch a silent store",
		rule: "Watch tells that the store does not answer, and then the state when it does",
		run: func(h *clients) {
			ctx, cancel := context.WithCancel(h.ctx)
			defer cancel()
			watcher, p := h.process(&holdfast.Options{})
			l := h.acquire(h.client(longTTL), "a")
			states := make(chan string, 1000)
			go func() {
				for info, err := range watcher.Watch(ctx, "a") {
					switch {
					case err != nil:
						states <- "silent"
					case len(info.Holders) == 0:
						states <- "free"
					default:
						states <- "held"
					}
				}
			}()
			await := func(want string) {
				h.Helper()
				for end := time.After(5*time.Second + h.soon); ; {
					select {
					case got := <-states:
						if got == want {
							return
						}
					case <-end:
						h.Fatalf("Watch did not show that it is %s", want)
					}
				}
			}
			await("held")
			p.Bus().SetFaults(faultstore.Faults{Lose: 1})
			h.release(l)
			await("silent")
			p.Bus().SetFaults(faultstore.Faults{})
			await("free")
		},
	},
}
