package stores

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cassandra"
	"github.com/holdfast-lock/holdfast/internal/reach"
)

// session connects to cassandra://HOST,HOST,HOST:PORT/KEYSPACE.
func session(target string) (*gocql.Session, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	list, port, ok := strings.Cut(u.Host, ":")
	if !ok {
		return nil, fmt.Errorf("no port in %s", target)
	}
	hosts := strings.Split(list, ",")
	c := gocql.NewCluster(hosts...)
	if c.Port, err = strconv.Atoi(port); err != nil {
		return nil, err
	}
	c.Keyspace = strings.TrimPrefix(u.Path, "/")
	c.Timeout, c.ConnectTimeout, c.WriteTimeout = 10*time.Second, 5*time.Second, 5*time.Second
	c.Metadata.CacheMode = gocql.Disabled // or each table that a test makes is read by all
	c.ReconnectInterval = time.Second
	c.ReconnectionPolicy = &gocql.ConstantReconnectionPolicy{MaxRetries: 3, Interval: 200 * time.Millisecond}
	return c.CreateSession()
}

func openCassandra(ctx context.Context, target string) (*Store, error) {
	conn, err := session(target)
	if err != nil {
		return nil, err
	}
	store, err := cassandra.New(ctx, conn, nil)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &Store{Store: store, Registers: inCassandra{conn}, close: reach.Parting(func() error { conn.Close(); return nil })}, nil
}

type inCassandra struct{ session *gocql.Session }

func (r inCassandra) Make(ctx context.Context, names ...string) error {
	err := r.session.Query(`create table if not exists registers (name text primary key, fence bigint, value bigint)`).ExecContext(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		for try := 0; ; try++ { // nobody uses it yet, so to do it twice is no harm
			var made bool
			if err == nil {
				made, err = r.session.Query(`insert into registers (name, fence, value) values (?, 0, 0) if not exists`, name).MapScanCASContext(ctx, make(map[string]any))
			}
			if err == nil && !made {
				_, err = r.session.Query(`update registers set fence = 0, value = 0 where name = ? if fence >= 0`, name).MapScanCASContext(ctx, make(map[string]any))
			}
			if err == nil || try == 3 || ctx.Err() != nil {
				break
			}
			err = nil
		}
		if err != nil {
			break
		}
	}
	return err
}

// Put is for exclusive locks. After an ErrLost of the fence the write may have been applied: Ambiguous.
func (r inCassandra) Put(ctx context.Context, lock *holdfast.Lock, value int64) (Verdict, error) {
	if lock.Slots() != 1 {
		return Unsent, nil
	}
	if lock.Err() != nil {
		return Refused, lock.Err()
	}
	if err := cassandra.Fence(ctx, r.session, lock, `update registers set fence = ?, value = ? where name = ? if fence <= ?`, value, lock.Name()); err != nil {
		return Ambiguous, err
	}
	return Taken, nil
}

func (r inCassandra) Get(ctx context.Context, name string) (value int64, err error) {
	err = r.session.Query(`select value from registers where name = ?`, name).Consistency(gocql.Serial).ScanContext(ctx, &value)
	return value, err
}

func (r inCassandra) Strict(*holdfast.Lock) bool { return false }
