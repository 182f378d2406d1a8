package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-lock/holdfast/driver"
)

// Diagnose implements driver.Diagnoser. It asks every member that the client
// knows of, and wakes itself once.
func (s *Store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	var r driver.Findings
	if err := s.members(ctx, &r); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	r.Say(driver.Good, "durability", "cannot be checked from here: a member that runs with --unsafe-no-fsync may forget locks when it loses power")
	if kept, err := s.remembers(ctx, longHistory); err != nil {
		r.Say(driver.Warning, "history", "cannot be read: %v", err)
	} else if kept {
		r.Say(driver.Warning, "history", "etcd still keeps what is %d revisions old, and refuses writes once its quota is full. Turn compaction on, as with --auto-compaction-mode=periodic --auto-compaction-retention=1h", longHistory)
	} else {
		r.Say(driver.Good, "history", "less than %d revisions are kept", longHistory)
	}
	if alarms, err := s.client.AlarmList(ctx); err == nil {
		for _, a := range alarms.Alarms {
			r.Say(driver.Failure, "alarm", "%s at member %x: no writes are taken until it is disarmed (etcdctl defrag, etcdctl alarm disarm)", a.Alarm, a.MemberID)
		}
	}
	if s.looks {
		r.Say(driver.Good, "rights", "opened to look: whether this user may write was not tried")
	} else if err := s.wakesItself(ctx); err != nil {
		r.Say(driver.Warning, "notifications", "watches do not work, so waiters poll: %v", err)
	} else {
		r.Say(driver.Good, "notifications", "waiters are woken by a watch")
	}
	s.among(ctx, &r)
	e, highest := s.now()
	r.Say(driver.Good, "epoch", "tokens count from %s, revision %d", time.UnixMicro(e.base).UTC().Format(time.RFC3339), highest)
	return r, nil
}

// members tells which members there are, and which of them answer.
func (s *Store) members(ctx context.Context, r *driver.Findings) error {
	members, err := send(ctx, true, func(ctx context.Context) (*clientv3.MemberListResponse, error) { return s.client.MemberList(ctx) })
	if err != nil {
		return err
	}
	var versions, silent []string
	voters, leader := 0, uint64(0)
	for _, m := range members.Members {
		if m.IsLearner {
			continue
		}
		voters++
		st, err := s.status(ctx, m.ClientURLs)
		if err != nil {
			silent = append(silent, m.Name)
			continue
		}
		leader = max(leader, st.Leader)
		if !strings.Contains(strings.Join(versions, " "), st.Version) {
			versions = append(versions, st.Version)
		}
	}
	text := fmt.Sprintf("etcd %s, %d of %d members answer", strings.Join(versions, " and "), voters-len(silent), voters)
	switch {
	case leader == 0:
		r.Say(driver.Failure, "server", "%s, and no member knows a leader: nothing can be granted", text)
	case len(silent) > 0:
		r.Say(driver.Warning, "server", "%s; silent: %s", text, strings.Join(silent, ", "))
	default:
		r.Say(driver.Good, "server", "%s", text)
	}
	switch {
	case voters < 3:
		r.Say(driver.Warning, "replication", "%d members: if one is down, nothing can be granted; with three one may be", voters)
	case voters%2 == 0:
		r.Say(driver.Warning, "replication", "%d members survive no more failures than %d do", voters, voters-1)
	default:
		r.Say(driver.Good, "replication", "%d members, of which %d may be down", voters, voters/2)
	}
	return nil
}

// among tells whether our keys are among those of another prefix.
func (s *Store) among(ctx context.Context, r *driver.Findings) {
	outer, hidden, err := s.outside(ctx)
	switch {
	case err != nil:
		r.Say(driver.Warning, "prefix", "whether our keys are among those of another prefix cannot be seen: %v", err)
	case outer != "":
		r.Say(driver.Failure, "prefix", "%v", errAmong(s.prefix, outer))
	case len(hidden) > 0:
		r.Say(driver.Warning, "prefix", "whether prefix %q is in use as well, among whose keys ours would be, cannot be seen by this user", hidden[0])
	}
}

// longHistory is a number of revisions that shows that nobody compacts: three days of a
// hundred processes' heartbeats.
const longHistory = 5_000_000

// remembers says whether the cluster still has its state of this many revisions ago.
func (s *Store) remembers(ctx context.Context, revisions int64) (bool, error) {
	if _, err := s.Load(ctx, []driver.Key{{Space: driver.Settings, Name: "-"}}, driver.Fresh); err != nil {
		return false, err
	}
	_, highest := s.now()
	if highest <= revisions {
		return false, nil
	}
	_, err := send(ctx, true, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, s.epochKey(), clientv3.WithRev(highest-revisions), clientv3.WithCountOnly())
	})
	if errors.Is(err, rpctypes.ErrCompacted) {
		return false, nil
	}
	return err == nil, err
}

// status asks one member, by the first of its addresses that answers.
func (s *Store) status(ctx context.Context, urls []string) (st *clientv3.StatusResponse, err error) {
	err = fmt.Errorf("it has no address")
	for _, u := range urls {
		one, cancel := context.WithTimeout(ctx, 2*time.Second)
		st, err = s.client.Status(one, u)
		cancel()
		if err == nil {
			return st, nil
		}
	}
	return nil, err
}

// wakesItself watches for a write of its own.
func (s *Store) wakesItself(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	who := "doctor-" + rand.Text()
	k := driver.Key{Space: driver.Settings, Name: who}
	wakes := s.wakes(who)
	defer func() { // even when time is up, but then only briefly: a sweep removes it, too
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 500*time.Millisecond)
		defer cancel()
		s.client.Delete(ctx, wakes, clientv3.WithPrefix())
	}()
	told := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- s.Watch(ctx, []string{who}, func(h driver.Notification) {
			switch h {
			case driver.Notification{}:
				s.client.Put(ctx, wakes+letters[k.Space]+k.Name, "")
			case driver.Notification{Key: k, To: who}:
				select {
				case told <- struct{}{}:
				default:
				}
			}
		})
	}()
	select {
	case <-told:
		cancel()
		<-ended
		return nil
	case err := <-ended:
		return err
	}
}
