package lease

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A breakWorld is the records that a break meets, and the clock. Each step of the test changes
// some of it, before a step of the break is performed.
type breakWorld struct {
	t       *testing.T
	now     Instant
	lock    record.Lock
	session record.Session
	absent  bool // the session has no record
	dead    bool // the session is known to be dead
	down    bool // the store does not answer
	audit   record.Audit
}

func newBreakWorld(t *testing.T) *breakWorld {
	return &breakWorld{t: t, lock: record.Lock{Holders: []record.Claim{{Session: "s", Nr: 1, Slots: 1, Token: 7}}, Waiters: []record.Claim{{Session: "w", Nr: 1, Slots: 1}}},
		session: record.Session{TTL: 10_000, Beat: 5}}
}

var breakNames = []string{"done", "gone", "look", "revoke", "observe", "pause", "grace", "remove", "trace", "audit"}

// perform does a step as the shell would.
func (w *breakWorld) perform(b *Breaker) (name string) {
	step, pause := b.Next(w.now)
	name = breakNames[step]
	if w.down && step != BreakPause {
		if !b.Unanswered() {
			return name + ": ends"
		}
		return name
	}
	switch step {
	case BreakLook:
		b.Saw(&w.lock)
	case BreakRevoke:
		sent, write, err := b.Revoke(&w.session, w.absent, -1)
		if err != nil || write && w.absent {
			w.t.Fatal(sent, write, err)
		}
		b.Revoked(sent, w.now)
	case BreakObserve:
		b.Observed(Sighting{Record: w.session, Absent: w.absent, Asked: w.now, Got: w.now}, w.dead)
	case BreakPause:
		w.now = w.now.Add(pause)
		b.Rested()
	case BreakGrace, BreakAudit:
		b.Rested()
	case BreakRemove:
		b.Removed(b.Remove(&w.lock, func(string) bool { return false }, 1), w.now)
	case BreakTrace:
		b.Traced(&w.lock, w.audit, w.dead)
	}
	return name
}

// The steps of a break, and what happens before each: of a claim that holds with token 7, while
// another waits.
func TestBreaker(t *testing.T) {
	waits := func(w *breakWorld) {
		w.lock.Waiters = []record.Claim{w.lock.Holders[0], w.lock.Waiters[0]}
		w.lock.Holders = []record.Claim{{Session: "h", Nr: 1, Slots: 1, Token: 6}}
		w.lock.Waiters[0].Token = 0
	}
	leaves := func(w *breakWorld) {
		w.lock.Drop(func(c record.Claim) bool { return c.Session == "s" })
		w.lock.Settle(func(string) bool { return false }, 1)
	}
	obeys := func(w *breakWorld) { leaves(w); w.lock.AddBreak(record.Break{Session: "s", Nr: 1}) }
	reads := func(w *breakWorld) { w.session.Beat++; w.session.Revoked = nil }
	passes := func(d time.Duration) func(*breakWorld) {
		return func(w *breakWorld) { w.now = w.now.Add(d) }
	}
	dies := func(w *breakWorld) { w.dead = true }
	down := func(w *breakWorld) { w.down = true }
	up := func(w *breakWorld) { w.down = false }
	grace := func(w *breakWorld) { w.session.Grace = 2000 }
	type before map[int]func(*breakWorld) // what happens before a step
	for _, test := range []struct {
		name   string
		token  record.Token
		now    bool // it does not wait
		before before
		steps  string
		holder string // of the record at the end
	}{
		{"its holder obeys", 7, false, before{5: obeys},
			"look revoke look observe pause look remove trace done", "w"},
		{"its session dies", 7, false, before{3: dies},
			"look revoke look observe grace remove done", "w"},
		{"its session dies, and another removes the claim", 7, false, before{3: dies, 5: leaves},
			"look revoke look observe grace remove trace audit done", "w"},
		{"its holder releases it without having read", 7, false, before{2: leaves},
			"look revoke look remove trace gone", "w"},
		{"it has read, and stays for a TTL", 7, false, before{3: reads, 6: passes(10 * time.Second)},
			"look revoke look observe pause look observe remove done", "w"},
		{"a TTL less a moment is not enough", 7, false, before{3: reads, 6: passes(10*time.Second - FirstPoll - 1), 8: leaves},
			"look revoke look observe pause look observe pause look remove trace gone", "w"},
		{"its grace is added", 7, false, before{0: grace, 3: reads, 6: passes(11 * time.Second), 9: passes(time.Second)},
			"look revoke look observe pause look observe pause look observe remove done", "w"},
		{"one that does not read is waited for", 7, false, before{6: passes(time.Hour), 9: dies},
			"look revoke look observe pause look observe pause look observe grace remove done", "w"},
		{"without a record at first", 7, false, before{0: func(w *breakWorld) { w.absent = true }, 5: func(w *breakWorld) { w.absent = false }, 8: reads, 10: passes(10 * time.Second)},
			"look revoke look revoke observe pause look revoke observe pause look observe remove done", "w"},
		{"not waited for", 7, true, nil, "look revoke remove done", "w"},
		{"it waits", 0, false, before{0: waits}, "look revoke remove done", "h"},
		{"it waits, and is granted meanwhile", 0, false, before{0: waits, 2: func(w *breakWorld) {
			w.lock.Holders, w.lock.Waiters = w.lock.Waiters[:1:1], w.lock.Waiters[1:]
		}, 3: obeys},
			"look revoke remove look remove trace done", "w"},
		{"it has gone", 7, false, before{0: leaves}, "look gone", "w"},
		{"a later grant of it", 6, false, nil, "look gone", "s"},
		{"it goes before it can be removed", 7, true, before{2: leaves}, "look revoke remove trace gone", "w"},
		{"another broke it", 7, true, before{2: func(w *breakWorld) { leaves(w); w.audit = record.Audit{{Session: "s", Nr: 1}} }}, "look revoke remove trace done", "w"},
		{"the store is silent at first", 7, false, before{0: down}, "look: ends", "s"},
		{"the store is silent while it waits", 7, false, before{2: down, 5: up, 7: dies},
			"look revoke look pause look pause look observe grace remove done", "w"},
		{"the store is silent at the end", 7, true, before{2: down}, "look revoke remove: ends", "s"},
	} {
		w := newBreakWorld(t)
		b := NewBreaker("n", record.Break{Session: "s", Nr: 1, Reason: "test", Now: test.now}, test.token)
		var steps []string
		for i := 0; i < 20; i++ {
			if do := test.before[i]; do != nil {
				do(w)
			}
			b = b.Clone()
			steps = append(steps, w.perform(b))
			if last := steps[i]; last == "done" || last == "gone" || strings.HasSuffix(last, "ends") {
				break
			}
		}
		if got := strings.Join(steps, " "); got != test.steps {
			t.Errorf("%s:\n     %s\nwant %s", test.name, got, test.steps)
		}
		if len(w.lock.Holders) != 1 || w.lock.Holders[0].Session != test.holder {
			t.Errorf("%s: then %+v holds, want %s", test.name, w.lock.Holders, test.holder)
		}
	}
}

// What a break writes into a lock record: the audit entry has the token that the claim had.
func TestBreakerRemoves(t *testing.T) {
	w := newBreakWorld(t)
	b := NewBreaker("n", record.Break{Session: "s", Nr: 1, Now: true, Reason: "test"}, 7)
	for w.perform(b) != "done" {
	}
	want := []record.Break{{Session: "s", Nr: 1, Token: 7, Now: true, Reason: "test"}}
	if !slices.EqualFunc(w.lock.Breaks, want, func(a, b record.Break) bool { return reflect.DeepEqual(a, b) }) {
		t.Errorf("the audit entries are %+v, want %+v", w.lock.Breaks, want)
	}
	if len(w.session.Revoked) != 1 || w.session.Revoked[0].Name != "n" || w.session.Revoked[0].Nr != 1 {
		t.Errorf("the session is to read %+v", w.session.Revoked)
	}
}

// Which records a revocation is written into.
func TestRevoke(t *testing.T) {
	one := []record.Revocation{{Name: "n", Nr: 1}}
	for _, test := range []struct {
		name        string
		rec         record.Session
		absent      bool
		sent, write bool
		revoked     int
	}{
		{"one that lives", record.Session{}, false, true, true, 1},
		{"it is there already", record.Session{Revoked: one}, false, true, true, 1},
		{"that of another claim", record.Session{Revoked: []record.Revocation{{Name: "n", Nr: 2}, {Name: "m", Nr: 1}}}, false, true, true, 3},
		{"a tombstone", record.Session{Dead: 1}, false, true, false, 0},
		{"none", record.Session{}, true, false, false, 0},
	} {
		sent, write, err := NewBreaker("n", record.Break{Session: "s", Nr: 1}, 0).Revoke(&test.rec, test.absent, -1)
		if err != nil || sent != test.sent || write != test.write || len(test.rec.Revoked) != test.revoked {
			t.Errorf("%s: sent %v, written %v, %d revocations, %v", test.name, sent, write, len(test.rec.Revoked), err)
		}
	}
}
