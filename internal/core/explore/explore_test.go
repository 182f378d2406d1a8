package explore

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"
)

// crowd is a world with all that a world can have.
var crowd = Setup{Users: [][]int{{1, 1}, {1}, {0, 2}}, Rounds: 2, TTL: 2, Sessions: 2, Crashes: 1, Ambiguous: 3, Cancels: 2, Marks: true}

// crowdOfSets is one whose goroutines acquire sets.
var crowdOfSets = Setup{Users: [][]int{{1, 1, 1}, {1, 0}, {1, 2}}, Sets: [][]string{{"ab", "c"}, {"bc"}, {"ac"}}, Rounds: 2, TTL: 2, Sessions: 2,
	Crashes: 1, Ambiguous: 2, Cancels: 2, Breaks: 1, Grace: 1, Marks: true}

// noRescue has a defect: time stands still, so that nobody declares a crashed holder dead.
var noRescue = Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 2, Sessions: 1, Crashes: 1, Still: true}

// beyondA4 has a store's clock that leaps by more than the margin, which assumption A4 excludes.
var beyondA4 = Setup{Users: [][]int{x, x}, Rounds: 1, TTL: 4, Marks: true, Ages: true, Leap: 8, Sessions: 1, After: wanted}

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
	for _, s := range []Setup{crowd, crowdOfSets} {
		testPack(t, s)
	}
}

func testPack(t *testing.T, s Setup) {
	p, again, e := newPacker(s), newPacker(s), newEncoder(s)
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(1, seed))
		for w, step := New(s), 0; w != nil && step < 100; step++ {
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
			s.Next(v, func(what string, _ bool, v *World) {
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

// Each field that has a rule of its own in an encoding is there.
func TestFields(t *testing.T) {
	fields := map[string]bool{}
	seen := map[reflect.Type]bool{}
	var visit func(t reflect.Type)
	visit = func(t reflect.Type) {
		if seen[t] {
			return
		}
		switch seen[t] = true; t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			visit(t.Elem())
		case reflect.Struct:
			for i := range t.NumField() {
				fields[t.String()+"."+t.Field(i).Name] = true
				visit(t.Field(i).Type)
			}
		}
	}
	visit(reflect.TypeFor[World]())
	for _, name := range slices.Concat(slices.Collect(maps.Keys(leftOut)), slices.Collect(maps.Keys(bounded)), slices.Collect(maps.Keys(partly)), []string{reloaded}) {
		if !fields[name] {
			t.Errorf("there is no %s", name)
		}
	}
}
