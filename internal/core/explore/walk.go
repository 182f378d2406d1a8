package explore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Walk takes n random ways of the given number of steps, in worlds that are too large to be
// searched. Faults are rarer than other actions.
func (s Setup) Walk(seed uint64, n, steps int) (r Result) {
	began := time.Now()
	for k := range uint64(n) {
		r.States++
		w, err := s.Start()
		if err != nil {
			return Result{Found: err.Error()}
		}
		if s.walk(&r, w, rand.New(rand.NewPCG(seed, k)), steps); r.Found != "" {
			r.Found += fmt.Sprintf(" (seed %d, walk %d)", seed, k)
			break
		}
	}
	r.Took = time.Since(began)
	return r
}

func (s Setup) walk(r *Result, w *World, random *rand.Rand, steps int) {
	var way, told []string
	for len(way) < steps {
		var to *World
		var what string
		sum := 0.0
		s.Next(w, func(label string, fault bool, v *World) {
			weight := 1.0
			if fault {
				weight = 0.15
			}
			if v.bad != "" && r.Found == "" {
				r.Found, r.Way, r.Story = v.bad, append(slices.Clone(way), label), append(slices.Clone(told), story(label, v))
			}
			if sum += weight; random.Float64()*sum < weight {
				to, what = v, label
			}
		})
		if to == nil || r.Found != "" {
			return
		}
		way, told = append(way, what), append(told, story(what, to))
		r.Steps++
		w = to
	}
}
