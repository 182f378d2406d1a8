package clienttest

import (
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// historyCases are about History.
var historyCases = []clientCase{
	{
		name: "history",
		rule: "the history of a name tells how each hold ended, its sums count the others, and a success is there before the lock is given back",
		run: func(h *clients) {
			look := h.look()
			if err := look.SetStoreHistory(h.ctx, 32); err != nil {
				h.Fatal(err)
			}
			if n, err := look.StoreHistory(h.ctx); n != 32 || err != nil {
				h.Fatalf("the setting is %d, %v", n, err)
			}
			const name = "ä <b>\"'"
			a := h.open(h.handle(), &holdfast.Options{TTL: midTTL, Owner: holdfast.Owner{Program: "a"}})
			h.release(h.acquire(a, name))
			l := h.acquire(a, name, holdfast.Reason("<backup> \"now\""))
			before := time.Now()
			if err := l.Succeeded(h.ctx); err != nil {
				h.Fatal(err)
			}
			past, err := look.History(h.ctx, name)
			if s := past.Success; err != nil || s == nil || s.Token != l.Token() || s.By.Program != "a" || s.Ago > h.soon || time.Since(s.At).Abs() > h.soon {
				h.Fatalf("while it is held: %+v, %v", s, err)
			}
			time.Sleep(1100*time.Millisecond - time.Since(before))
			if err := a.Close(); err != nil { // it records now what it has not recorded yet
				h.Error(err)
			}
			dead, way := h.process(&holdfast.Options{TTL: shortTTL, Owner: holdfast.Owner{Program: "dead"}})
			of := h.acquire(dead, name).Token()
			way.Crash()
			b := h.clientOf(h.handle(), &holdfast.Options{TTL: midTTL, Owner: holdfast.Owner{Program: "b"}})
			l = h.acquire(b, name)
			want := fmt.Sprint([]int64{of, past.Success.Token}) // and the short one, which is listed if it was slow
			for end := time.Now().Add(midTTL + h.soon); int64(len(past.Holds))+past.Others.Count < 3; time.Sleep(5 * time.Millisecond) {
				if past, err = look.History(h.ctx, name); err != nil || time.Now().After(end) {
					h.Fatalf("what has ended: %+v, %v; in the store: %s", past, err, h.dump())
				}
			}
			if len(past.Holds) < 2 {
				h.Fatalf("what has ended: %+v", past)
			}
			if got := fmt.Sprint([]int64{past.Holds[0].Token, past.Holds[1].Token}); got != want {
				h.Fatalf("holds of tokens %s, want %s", got, want)
			}
			if p := past.Holds[0]; p.End != "taken over" || p.By.Program != "b" || p.Owner.Program != "dead" || p.Why == "" {
				h.Errorf("of the dead: %+v", p)
			}
			if p := past.Holds[1]; p.End != "released" || p.Owner.Program != "a" || p.Reason != "<backup> \"now\"" || p.From.Sub(before).Abs() > h.soon || p.To.Sub(p.From) < time.Second {
				h.Errorf("of the first: %+v", p)
			}
			var all []string
			for past, err := range look.Histories(h.ctx, "ä") {
				if err != nil {
					h.Fatal(err)
				}
				all = append(all, past.Name)
			}
			if len(all) != 1 || all[0] != name {
				h.Errorf("the histories of %q", all)
			}
			h.release(l)
		},
	},
}
