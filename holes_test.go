package holdfast_test

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/wire"
)

// What is wrong with two locks that stand on a database as these do: with that of
// Gerrit's global-refdb as it was first described, G1 to G14, and with spindle's,
// S1 to S14. Each hole has a test that fails when the rule that closes it is taken
// out. Those that have none of their name:
//
//	G4   read first, written then   no store reads first: "race to follow" and "race and go on" of drivertest.Run,
//	                                TestBatchComparesVersions (postgres, mysql); the fence: TestFenceIsolation
//	                                (postgres), TestFenceUnderSnapshotIsolation (mysql)
//	G12  a released row forgets     TestTokens, and TestHoleG6TokensOnlyGrow
//	     its token
//	G14  no queue, a herd           TestFIFOAcrossClients, TestHandOffCost
//	S4   a heartbeat that names     that of G3
//	     no token
//	S5   a prefix is cleaned up     that of G13
//	S8   a token without order      that of G6; of terms: TestElection
//	S10  names are pasted in SQL    that of G13, and "strange keys" of drivertest.Run
//	S11  a release frees nothing    TestPolling
//	S14  the published schema       TestSchema and TestVersions (postgres), TestSchema and TestOpenRefuses
//	     lacks a column             (sqlite), TestVerify (of other stores), TestTableRefused (cassandra)
//
// There is no reclaim row that could be left over (G5, G13, S1): whoever takes a
// lock over writes a tombstone, under the random name of the session, in a space
// of its own, and it bars nobody. Clocks that step on real servers are in
// verify/chaos, processes that freeze in verify/process.

// G1: a holder is judged by its last heartbeat, and the next one comes before it is
// buried. Gerrit's compares only the token then, which is the same.
func TestHoleG1LiveLockIsNotStolen(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		held, judge, way := s.misjudged(func() { time.Sleep(beat + time.Second) })
		burial := count(way, wire.IsTombstone)
		s.refused(judge)
		if burial.Load() == 0 {
			t.Fatal("nobody was taken for dead")
		}
		time.Sleep(2 * holdfast.DefaultTTL)
		s.holds(held)
	})
}

// S2: who takes a lock over stalls when it has begun, the holder goes on, and then
// the rest comes. Spindle's has deposed a healthy leader then.
func TestHoleS2StalledTakeover(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		held, judge, way := s.misjudged(func() {})
		burial := keep(way, wire.IsTombstone, 1)
		s.refused(judge)
		time.Sleep(beat + time.Second)
		burial.lose(s)
		time.Sleep(2 * holdfast.DefaultTTL)
		s.holds(held)
	})
}

// G2: a release that comes late does not remove who holds the lock now, whether its
// sender goes on, and has repeated it, or has died meanwhile.
func TestHoleG2ReleaseHarmsNoStranger(t *testing.T) {
	for _, dies := range []bool{false, true} {
		play(t, func(t *testing.T, s *stage) {
			a, way := s.join()
			b, _ := s.join()
			l := s.take(a, time.Second)
			n := 1
			if dies {
				n = always
			}
			release := keep(way, wire.IsClaim, n)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := l.Release(ctx); (err != nil) != dies {
				t.Errorf("dies %v: Release: %v", dies, err)
			}
			way.Off.Store(dies)
			next := s.take(b, time.Minute)
			release.lose(s)
			s.holds(next)
		})
	}
}

// G3, S4: a heartbeat that comes after its sender was found dead refreshes neither
// it nor anybody else, also when its tombstone has gone.
func TestHoleG3HeartbeatOfTheDead(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		a, way := s.join()
		b, _ := s.join()
		l := s.take(a, time.Second)
		beats := keep(way, wire.IsBeat, always)
		next := s.take(b, time.Minute)
		s.lost(l)
		beats.lose(s)
		s.sweep()
		if r := s.record(beats.writes[0].Key); r.Version != 0 {
			t.Fatalf("the tombstone is still there: %s", r.Value)
		}
		beats.lose(s)
		s.holds(next)
	})
}

// S1: who takes a lock over dies between its steps, and the next goes on from
// there, at once. With spindle's nobody could ever again.
func TestHoleS1TakeoverDiesHalfWay(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		s.halfTaken()
		c, _ := s.join()
		l, err := c.TryAcquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		s.holds(l)
	})
}

// G5: what is left of a takeover that died between its steps goes. Gerrit's leaves a
// row, and it would be in the way of the next who has the same token.
func TestHoleG5NothingIsLeftOfATakeover(t *testing.T) {
	play(t, func(t *testing.T, s *stage) {
		s.halfTaken()
		s.sweep()
		for _, space := range []driver.Space{driver.Names, driver.Sessions} {
			if names, err := s.store.Keys(t.Context(), space, "", 10); err != nil || len(names) > 0 {
				t.Errorf("left over: %s %q, error %v", space, names, err)
			}
		}
	})
}
