package check

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// One command line fits this package and the simulation.
var (
	_ = flag.Int("seeds", 0, "for ../sim")
	_ = flag.Bool("exact", true, "for ../sim")
)

const ms = time.Millisecond

func hold(slots int, token int64, asked, granted, ended time.Duration) Hold {
	return Hold{Name: "a", Slots: slots, Token: token, Asked: asked * ms, Granted: granted * ms, Ended: ended * ms}
}

// Each checker takes a good history and refuses a bad one.
func TestHolds(t *testing.T) {
	for _, c := range []struct {
		name  string
		check func([]Hold) []Violation
		bad   bool
		holds []Hold
	}{
		{"tokens grow", Tokens, false, []Hold{hold(1, 1, 0, 1, 2), hold(1, 2, 1, 3, 4)}},
		{"a token twice", Tokens, true, []Hold{hold(1, 1, 0, 1, 2), hold(1, 1, 1, 3, 4)}},
		{"a token goes back", Tokens, true, []Hold{hold(1, 2, 0, 1, 2), hold(1, 1, 2, 3, 4)}},
		{"attempts at one time may come in any order", Tokens, false, []Hold{hold(1, 2, 0, 3, 4), hold(1, 1, 0, 1, 2)}},
		{"readers of one claim in any order", Tokens, false, []Hold{hold(0, 2, 0, 1, 9), hold(0, 1, 2, 3, 9)}},

		{"one after the other", Windows, false, []Hold{hold(1, 1, 0, 1, 2), hold(1, 2, 0, 2, 3)}},
		{"two at once", Windows, true, []Hold{hold(1, 1, 0, 1, 3), hold(1, 2, 0, 2, 3)}},
		{"readers at once", Windows, false, []Hold{hold(0, 1, 0, 1, 3), hold(0, 2, 0, 2, 3)}},
		{"a reader with a writer", Windows, true, []Hold{hold(0, 1, 0, 1, 3), hold(1, 2, 0, 2, 3)}},
		{"three in three slots", Windows, false, []Hold{hold(3, 1, 0, 1, 9), hold(3, 2, 0, 2, 9), hold(3, 3, 0, 3, 9)}},
		{"the smallest number of slots counts", Windows, true, []Hold{hold(3, 1, 0, 1, 9), hold(2, 2, 0, 2, 9), hold(3, 3, 0, 3, 9)}},
		{"broken at once", Windows, false, []Hold{{Name: "a", Slots: 1, Token: 1, Granted: 1, Ended: 9, Void: true}, {Name: "a", Slots: 1, Token: 2, Granted: 2, Ended: 9}}},

		{"a lock", RWLock, false, []Hold{hold(0, 1, 0, 1, 4), hold(0, 2, 0, 2, 3), hold(1, 3, 1, 5, 6)}},
		{"a writer among readers", RWLock, true, []Hold{hold(0, 1, 0, 1, 4), hold(1, 3, 1, 2, 3)}},
		{"an older token", RWLock, true, []Hold{hold(1, 3, 0, 1, 2), hold(1, 2, 3, 4, 5)}},
	} {
		if found := c.check(c.holds); (len(found) > 0) != c.bad {
			t.Errorf("%s: found %v", c.name, found)
		}
	}
}

func TestRegister(t *testing.T) {
	write := func(at time.Duration, token, value int64, refused bool) Access {
		return Access{Call: at, Return: at, Token: token, Value: value, Refused: refused, Strict: true}
	}
	read := func(at time.Duration, value int64) Access {
		return Access{Call: at, Return: at, Read: true, Value: value}
	}
	perhaps := func(at time.Duration, token, value int64, strict bool) Access {
		return Access{Call: at, Return: at, Token: token, Value: value, Unknown: true, Strict: strict}
	}
	for _, c := range []struct {
		name    string
		bad     bool
		history []Access
	}{
		{"newer ones", false, []Access{write(1, 1, 10, false), read(2, 10), write(3, 2, 20, false), read(4, 20)}},
		{"an older one is refused", false, []Access{write(1, 2, 10, false), write(2, 1, 20, true), read(3, 10)}},
		{"an older one is taken", true, []Access{write(1, 2, 10, false), read(2, 10), write(3, 1, 20, false), read(4, 20)}},
		{"a newer one is refused", true, []Access{write(1, 1, 10, false), write(2, 2, 20, true)}},
		{"no answer, and it was taken", false, []Access{perhaps(1, 1, 10, false), read(2, 10)}},
		{"no answer, and it was taken later", false, []Access{perhaps(1, 1, 10, false), read(2, 0), read(3, 10)}},
		{"no answer, and it was not taken", false, []Access{perhaps(1, 1, 10, false), read(2, 0)}},
		{"no answer, taken, and undone", true, []Access{perhaps(1, 1, 10, false), read(2, 10), read(3, 0)}},
		{"no answer, and taken behind a newer one", true, []Access{perhaps(1, 1, 10, false), write(2, 2, 20, false), read(3, 20), read(4, 10)}},
		{"no answer, and refused for it", false, []Access{perhaps(1, 2, 10, true), write(2, 1, 20, true), write(3, 3, 30, false), read(4, 30)}},
		{"no answer, and refused for no reason", true, []Access{perhaps(1, 2, 10, true), write(2, 3, 20, true)}},
		{"no answer, and read before it was sent", true, []Access{read(1, 10), perhaps(2, 1, 10, false)}},
	} {
		if found := Register("a", c.history); (len(found) > 0) != c.bad {
			t.Errorf("%s: found %v", c.name, found)
		}
	}
}

// Steps of a store, and the rule that the last of them breaks.
func TestAudit(t *testing.T) {
	const (
		one, two = uint64(1), uint64(2) // writers
		open     = `{"ttl":1000,"beat":1,"nonce":"x"}`
		beat     = `{"ttl":1000,"beat":2,"nonce":"y"}`
		dead     = `{"ttl":1000,"beat":1,"nonce":"x","dead":1}`
		held     = `{"holders":[{"session":"s1","nr":1,"slots":1}]}`
		waited   = `{"holders":[{"session":"s1","nr":1,"slots":1,"token":1}],"waiters":[{"session":"s2","nr":1,"slots":1}]}`
		handed   = `{"holders":[{"session":"s2","nr":1,"slots":1}]}`
		blocked  = `{"waiters":[{"session":"s2","nr":1,"slots":1}]}`
	)
	lock := func(version int64, value string, writer uint64) Step {
		return Step{Key: driver.Key{Space: driver.Names, Name: "a"}, Version: version, Value: value, Writers: writer, At: time.Duration(version) * 300 * ms}
	}
	session := func(version int64, name, value string, writer uint64) Step {
		return Step{Key: driver.Key{Space: driver.Sessions, Name: name}, Version: version, Value: value, Writers: writer, At: time.Duration(version) * 300 * ms}
	}
	broken := func(version int64, more string, stood time.Duration) Step {
		return session(version, "s1", fmt.Sprintf(`{"ttl":1000,"beat":1,"nonce":"x"%s,"revoked":[{"name":"a","nr":1}],"suspected":{"by":"b","age":%d}}`, more, stood.Microseconds()), two)
	}
	const alone = `,"detached":true`
	begin := []Step{session(1, "s1", open, one), session(1, "s2", open, two), lock(1, held, one), lock(2, waited, two)}
	for _, c := range []struct {
		name string
		bad  bool
		more []Step
	}{
		{"handed on by its holder", false, []Step{lock(3, handed, one)}},
		{"taken from the living", true, []Step{lock(3, handed, two)}},
		{"taken from the dead", false, []Step{session(5, "s1", dead, two), lock(6, handed, two)}},
		{"declared dead too soon", true, []Step{session(3, "s1", dead, two)}},
		{"one's own end is never too soon", false, []Step{session(3, "s1", dead, one)}},
		{"not handed on", true, []Step{lock(3, blocked, one)}},
		{"given by a lazy write", true, []Step{{Key: driver.Key{Space: driver.Names, Name: "a"}, Version: 3, Value: handed, Writers: one, Lazy: true}}},
		{"a version twice", true, []Step{lock(2, handed, one)}},
		{"a beat", false, []Step{session(2, "s1", beat, one)}},
		{"a beat by another", true, []Step{session(2, "s1", beat, two)}},
		{"life after death", true, []Step{session(5, "s1", dead, two), session(6, "s1", beat, one)}},
		{"broken twice", true, []Step{broken(2, "", 300*ms), broken(3, "", 600*ms)}},
		{"broken twice, and nothing renews it", false, []Step{broken(2, alone, 300*ms), broken(3, alone, 600*ms)}},
		{"broken twice, and older than it is", true, []Step{broken(2, alone, 300*ms), broken(3, alone, 700*ms)}},
		{"broken twice, and younger the second time", true, []Step{broken(2, alone, 300*ms), broken(3, alone, 200*ms)}},
		{"a claim for another", true, []Step{lock(3, `{"holders":[{"session":"s1","nr":1,"slots":1,"token":1}],"waiters":[{"session":"s2","nr":1,"slots":1},{"session":"s1","nr":2,"slots":1}]}`, two)}},
		{"overtaken", true, []Step{lock(3, `{"holders":[{"session":"s1","nr":2,"slots":1}],"waiters":[{"session":"s2","nr":1,"slots":1}]}`, one)}},
	} {
		a := NewAudit(func(s string) uint64 { return map[string]uint64{"s1": one, "s2": two}[s] }, 0)
		if found := a.Check(append(begin[:len(begin):len(begin)], c.more...)); (len(found) > 0) != c.bad {
			t.Errorf("%s: found %v", c.name, found)
		}
	}
}
