package mysql

import (
	"context"
	"database/sql"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/holdfast-lock/holdfast/driver"
)

// A lateConn calls answered when an answer has come, and hands the answer on once the
// connection is closed.
type lateConn struct {
	net.Conn
	answered *atomic.Pointer[func()]
	closed   chan struct{}
	once     sync.Once
}

func (c *lateConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if f := c.answered.Swap(nil); f != nil {
		(*f)()
		<-c.closed
	}
	return n, err
}

func (c *lateConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// A call that succeeds just when its context ends leaves nothing behind for the next one,
// though the driver has closed the connection.
func TestEndsWithItsAnswer(t *testing.T) {
	h := fresh(t, way{})
	u, err := url.Parse(h.url)
	if err != nil {
		t.Fatal(err)
	}
	config := mysql.NewConfig()
	config.Net, config.Addr, config.DBName = "tcp", u.Host, u.Path[1:]
	config.User = u.User.Username()
	config.Passwd, _ = u.User.Password()
	config.Logger = &mysql.NopLogger{}
	var answered atomic.Pointer[func()]
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return &lateConn{Conn: conn, answered: &answered, closed: make(chan struct{})}, err
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { db.Close() })
	s, err := New(t.Context(), db, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	k, version := name("a"), driver.IfEmpty
	write := func(ctx context.Context) error {
		out, err := s.CompareAndSwap(ctx, []driver.Write{{Key: k, Old: version, Value: []byte("1")}})
		if err == nil && !out[0].Won {
			t.Fatalf("a write lost to %+v", out[0].Record)
		}
		if err == nil {
			version = out[0].Record.Version
		}
		return err
	}
	for range 2 { // the insert, and the update that is prepared from now on
		if err := write(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	end := func() { cancel() }
	answered.Store(&end)
	if err := write(ctx); err != nil || ctx.Err() == nil {
		t.Fatalf("the answer was there, and the call returned %v; its context: %v", err, ctx.Err())
	}
	if err := write(t.Context()); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

// A pool that its user has closed is a closed store.
func TestClosedPool(t *testing.T) {
	db := sql.OpenDB(noConnector{})
	db.Close()
	if _, err := (conns{db: db}).Open(t.Context()); err != driver.ErrClosed {
		t.Errorf("error %v", err)
	}
}
