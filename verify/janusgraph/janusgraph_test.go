//go:build linux

package janusgraph

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast/cassandra"
	"github.com/holdfast-lock/holdfast/claims"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

var (
	buildOnce sync.Once
	program   *Program
	buildErr  error
	buildDir  string // of all tests, made by TestMain
)

// build is the driver, compiled once for all tests.
func build(t *testing.T) *Program {
	t.Helper()
	buildOnce.Do(func() { program, buildErr = Build(t.Context(), buildDir) })
	if errors.Is(buildErr, servers.ErrMissing) {
		t.Skip(buildErr)
	}
	must(t, buildErr)
	return program
}

func start(t *testing.T, target string, s Settings) *Locker {
	t.Helper()
	l, err := build(t).Start(t.Context(), target, s)
	must(t, err)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// session connects to the keyspace of a URL.
func session(t testing.TB, target string) *gocql.Session {
	t.Helper()
	s, err := connect(target)
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

func connect(target string) (*gocql.Session, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	i := strings.LastIndexByte(u.Host, ':')
	cluster := gocql.NewCluster(strings.Split(u.Host[:i], ",")...)
	if cluster.Port, err = strconv.Atoi(u.Host[i+1:]); err != nil {
		return nil, err
	}
	cluster.Keyspace = path.Base(u.Path)
	cluster.Consistency = gocql.Quorum
	cluster.Timeout, cluster.ConnectTimeout = 10*time.Second, 30*time.Second
	cluster.DisableInitialHostLookup = false
	return cluster.CreateSession()
}

// A cell is a column of a row and when the store thinks it was written.
type cell struct {
	key, column, value []byte
	written            int64
}

func cells(t *testing.T, s *gocql.Session, table string) (all []cell) {
	t.Helper()
	var c cell
	for iter := s.Query(fmt.Sprintf("SELECT key, column1, value, WRITETIME(value) FROM %s", table)).Iter(); ; {
		if !iter.Scan(&c.key, &c.column, &c.value, &c.written) {
			must(t, iter.Close())
			return all
		}
		all = append(all, cell{bytes.Clone(c.key), bytes.Clone(c.column), bytes.Clone(c.value), c.written})
	}
}

// JanusGraph's locker takes a lock and gives it back, and keeps another one out
// meanwhile. What it writes is, byte by byte, what package claims takes it to be.
func TestJanusGraph(t *testing.T) {
	target := servers.Cassandra(t, nil).Database(t)
	db := session(t, target)
	key, column := []byte("k1"), []byte("c1")
	for unit, length := range map[string]time.Duration{"NANO": 1, "MICRO": time.Microsecond, "MILLI": time.Millisecond} {
		t.Run(unit, func(t *testing.T) {
			s := Settings{Rid: "ridA", Unit: unit, Wait: time.Second, Table: "locks_" + strings.ToLower(unit)}
			a := start(t, target, s)
			before := time.Now()
			_, err := a.Write(key, column)
			must(t, err)
			after := time.Now()
			all := cells(t, db, s.Table)
			if len(all) != 1 || len(all[0].column) < 8 {
				t.Fatalf("got %x, want one claim", all)
			}
			got := all[0]
			if want := []byte("\x00\x00\x00\x02k1c1"); !bytes.Equal(got.key, want) {
				t.Errorf("got the key %x, want %x", got.key, want)
			}
			if want := "ridA"; string(got.column[8:]) != want {
				t.Errorf("got the column %x, want a timestamp and then %x", got.column, want)
			}
			if want := make([]byte, 4); !bytes.Equal(got.value, want) {
				t.Errorf("got the value %x, want %x", got.value, want)
			}
			stamp := int64(binary.BigEndian.Uint64(got.column))
			if from, to := before.UnixNano()/int64(length), after.UnixNano()/int64(length); stamp < from || stamp > to {
				t.Errorf("got the timestamp %d, want one from %d to %d", stamp, from, to)
			}
			// The store is told the time in that unit too: a deletion in another one
			// would count for nothing, or forever.
			if late := got.written - stamp; late < 0 || late > 1 {
				t.Errorf("the store was told %d, want the claim's timestamp %d or one more", got.written, stamp)
			}

			listed := list(t, db, target, s.Table)
			if len(listed) != 1 {
				t.Fatalf("listed are %+v, want one claim", listed)
			}
			c := listed[0]
			if !bytes.Equal(c.Key, key) || !bytes.Equal(c.Column, column) || c.Owner != "ridA" || c.Locker || !c.First || c.Expired {
				t.Errorf("listed is %+v", c)
			}
			if from, to := before.Truncate(length), after; c.Time.Before(from) || c.Time.After(to) {
				t.Errorf("listed is a claim of %v, want one from %v to %v", c.Time, from, to)
			}

			_, err = a.Check()
			must(t, err)
			if unit == "NANO" { // another one is kept out
				s.Rid = "ridB"
				b := start(t, target, s)
				var failure *Failure
				if _, err := b.Lock(key, column); !errors.As(err, &failure) || failure.Class != "TemporaryLockingException" {
					t.Errorf("the second one was told %v, want that the lock is held", err)
				}
				_, err = a.Delete()
				must(t, err)
				locked, err := b.Lock(key, column)
				must(t, err)
				if now := Now(); locked.Began > locked.Ended || locked.Ended > now || now-locked.Began > time.Minute {
					t.Errorf("by its clock it took %v, and now is %v", locked, now)
				}
				_, err = b.Delete()
				must(t, err)
			}
			_, err = a.Delete()
			must(t, err)
			if left := cells(t, db, s.Table); len(left) > 0 {
				t.Errorf("left behind: %x", left)
			}
			// A claim whose owner is gone is removed, in its own unit of time.
			_, err = a.Write(key, column)
			must(t, err)
			must(t, claims.Remove(t.Context(), columns(t, db, target, s.Table), list(t, db, target, s.Table)...))
			if left := cells(t, db, s.Table); len(left) > 0 {
				t.Errorf("not removed: %x", left)
			}
		})
	}
}

func columns(t *testing.T, db *gocql.Session, target, table string) *cassandra.Columns {
	t.Helper()
	c, err := cassandra.NewColumns(t.Context(), db, path.Base(target), table)
	must(t, err)
	return c
}

// list is what List says of a table.
func list(t *testing.T, db *gocql.Session, target, table string) (all []claims.Claim) {
	t.Helper()
	for c, err := range claims.List(t.Context(), columns(t, db, target, table), 0) {
		must(t, err)
		all = append(all, c)
	}
	return all
}
