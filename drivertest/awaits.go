package drivertest

import (
	"context"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/busy"
)

// awaitCases are for stores that can await a write.
var awaitCases = []testCase{
	{
		name: "await",
		rule: "Await returns as soon as the record has another version",
		need: awaits,
		run: func(h *harness) {
			k, rec := name("a"), driver.Record{}
			for i := range 10 {
				type read struct {
					driver.Record
					err error
				}
				answer := make(chan read, 1)
				version := rec.Version
				go func() {
					r, err := awaiter(h.store).Await(h.ctx, k, version, lookEvery, awaitLimit())
					answer <- read{r, err}
				}()
				next := h.win(driver.Write{Key: k, Old: orIfEmpty(version), Value: []byte{byte(i)}})
				began := time.Now()
				select {
				case got := <-answer:
					if took := time.Since(began); took > awaitLimit()/2 {
						h.Fatalf("Await has returned %v after version %d was written", took, next.Version)
					}
					if version == 0 && got.err == nil && got.Version == 0 { // it was read before it was there
						break
					}
					if got.err != nil || got.Version != next.Version || string(got.Value) != string(next.Value) {
						h.Fatalf("after version %d was written, Await of another than %d returned %s, %v", next.Version, version, show(got.Record), got.err)
					}
				case <-h.ctx.Done():
					h.Fatalf("Await does not return")
				}
				rec = next
			}
		},
	},
	{
		name: "await nothing",
		rule: "Await returns the record as it is if it has another version from the beginning, or none, and when limit is over",
		need: awaits,
		run: func(h *harness) {
			a := awaiter(h.store)
			await := func(k driver.Key, version int64, limit time.Duration) driver.Record {
				h.Helper()
				r, err := a.Await(h.ctx, k, version, lookEvery, limit)
				if err != nil {
					h.Fatalf("Await: %v", err)
				}
				return r
			}
			first := h.put(name("a"), "1")
			began := time.Now()
			h.same("Await of an older version", await(name("a"), first.Version-1, awaitLimit()), first)
			h.same("Await of a newer version", await(name("a"), first.Version+1, awaitLimit()), first)
			h.same("Await of a version where there is none", await(name("b"), 7, awaitLimit()), driver.Record{})
			if took := time.Since(began); took > awaitLimit()/2 {
				h.Errorf("three of Await that have nothing to wait for took %v", took)
			}
			const limit = 60 * time.Millisecond
			began = time.Now()
			h.same("Await in vain", await(name("a"), first.Version, limit), first)
			if took := time.Since(began); took < limit*3/4 {
				h.Errorf("Await gave up after %v, want %v", took, limit)
			}
		},
	},
	{
		name: "await ends",
		rule: "Await ends when its context does",
		need: awaits,
		run: func(h *harness) {
			first := h.put(name("a"), "1")
			ctx, cancel := context.WithTimeout(h.ctx, 20*time.Millisecond)
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := awaiter(h.store).Await(ctx, name("a"), first.Version, lookEvery, awaitLimit())
				ended <- err
			}()
			select {
			case err := <-ended:
				if err == nil {
					h.Errorf("Await returned no error although its context had ended")
				}
			case <-time.After(awaitLimit() / 2):
				h.Fatalf("Await goes on %v after its context has ended", awaitLimit()/2)
			}
		},
	},
}

const lookEvery = 2 * time.Millisecond

// awaitLimit is far above what an Await that sees a write takes.
func awaitLimit() time.Duration { return busy.Times(20 * time.Second) }

func awaits(s driver.Store) bool { return s.Traits().Awaits }

// awaiter is the store as an Awaiter; need has checked that it is one.
func awaiter(s driver.Store) driver.Awaiter { return s.(driver.Awaiter) }

func orIfEmpty(version int64) int64 {
	if version == 0 {
		return driver.IfEmpty
	}
	return version
}
