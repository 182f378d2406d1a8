package explore

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"runtime"
	"testing"
)

// crowd is a world with all that a world can have.
var crowd = Setup{Users: [][]int{{1, 1}, {1}, {0, 2}}, Rounds: 2, TTL: 2, Sessions: 2, Crashes: 1, Ambiguous: 3, Cancels: 2, Marks: true}

// noRescue has a defect: time stands still, so that nobody declares a crashed holder dead.
var noRescue = Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Crashes: 1, Still: true}

// A search finds and counts the same with any number of processors.
func TestProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	limited := Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Ambiguous: 1, Limit: 3000}
	for _, s := range []Setup{{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Still: true}, limited, noRescue} {
		var want Result
		for n := 1; n <= 4; n++ {
			runtime.GOMAXPROCS(n)
			got := s.Explore(true, nil)
			if got.States < 300 {
				t.Errorf("only %v", got)
			}
			if got.Took, got.Memory = 0, 0; n == 1 {
				want = got
			} else if !reflect.DeepEqual(got, want) {
				t.Errorf("with %d processors %v, with one %v", n, got, want)
			}
		}
	}
}

// A world that was packed is the same world again, and the names of its actions differ.
func TestPack(t *testing.T) {
	p, again, e := newPacker(crowd), newPacker(crowd), newEncoder(crowd)
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(1, seed))
		for w, step := New(crowd), 0; w != nil && step < 100; step++ {
			packed := p.pack(nil, w)
			v := again.unpack(packed)
			if twice := p.pack(nil, v); !bytes.Equal(twice, packed) {
				t.Fatalf("%v is packed as %x, and unpacked and packed as %x", w, packed, twice)
			}
			if a, b := string(e.world(w)), string(e.world(v)); a != b {
				t.Fatalf("%v is encoded as %x, and unpacked as %x", w, a, b)
			}
			names, n := map[string]bool{}, 0
			var to *World
			crowd.Next(v, func(what string, _ bool, v *World) {
				if names[what] {
					t.Errorf("two actions are %q", what)
				}
				names[what] = true
				if n++; random.IntN(n) == 0 {
					to = v
				}
			})
			w = to
		}
	}
}
