package postgres

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/sqlstore"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	quietFor  = 10 * time.Second // then see whether the connection is alive
	proofTime = 2 * time.Second  // the longest that a notification takes
	readTime  = 2 * time.Second  // the longest that a read of its record takes
	deafFor   = 5 * time.Minute  // then see again whether notifications arrive
)

// errDeaf is why there are no notifications.
var errDeaf = errors.New("a connection pooler that shares connections is in between, and notifications do not arrive: waiters poll; to be woken, connect to the server itself or in session mode")

// Traits implements driver.Store: each notification wakes everyone who listens in the
// database, whatever they listen to.
func (s *Store) Traits() driver.Traits { return driver.Traits{CostlyWatch: true} }

// Watch implements driver.Watcher by LISTEN, on a connection of its own. It
// returns an error where a connection pooler keeps notifications from arriving.
func (s *Store) Watch(ctx context.Context, who []string, changed func(driver.Notification)) error {
	return s.watches.Run(ctx, func(ctx context.Context) error {
		c, err := s.listen(ctx, who)
		if err != nil {
			return ended(ctx, err)
		}
		defer s.unlisten(c)
		changed(driver.Notification{}) // what was written before is not told of
		for {
			n, err := next(ctx, c)
			if err != nil {
				return ended(ctx, err)
			}
			if notification, ok := notificationOf(n.Payload); ok {
				if notification.Space == driver.Names && slices.Contains(who, notification.To) {
					s.read(ctx, c, &notification)
				}
				changed(notification)
			}
		}
	})
}

// read adds the record to a notification for a session that watches. The connection that received
// it answers sooner than one that was idle. If the read fails the notification carries no record.
func (s *Store) read(ctx context.Context, c *pgx.Conn, n *driver.Notification) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	var version int64
	var value []byte
	row := func(scan sqlstore.Scan) error { return scan(&version, &value) }
	if err := (conn{c, &s.settings}).Query(ctx, "told", row, sqlstore.ID(n.Key)); err == nil {
		n.Version, n.Value = version, string(value)
	}
}

// ended is why watching ended: the end of the context, not what that did to a connection.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("watch: %w", err)
}

// next waits for a notification. A silent connection is asked for a sign of life.
func next(ctx context.Context, c *pgx.Conn) (*pgconn.Notification, error) {
	for {
		quiet, cancel := context.WithTimeout(ctx, quietFor)
		n, err := c.WaitForNotification(quiet)
		cancel()
		switch {
		case n != nil:
			return n, nil
		case err == nil:
			continue
		case ctx.Err() != nil || c.IsClosed():
			return nil, err
		}
		alive, cancel := context.WithTimeout(ctx, quietFor/2)
		err = c.Ping(alive)
		cancel()
		if err != nil {
			return nil, err
		}
	}
}

// listen returns a connection on which notifications arrive.
func (s *Store) listen(ctx context.Context, who []string) (*pgx.Conn, error) {
	if c := s.spare.Swap(nil); c != nil {
		if err := s.tune(ctx, c, who); err == nil {
			return c, nil
		}
		shut(c) // the server may have ended it
	}
	if deaf := s.deaf.Load(); deaf != nil && time.Since(*deaf) < deafFor {
		return nil, errDeaf
	}
	c, err := s.conns.Open(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.tune(ctx, c, who); err != nil {
		shut(c)
		if errors.Is(err, errDeaf) {
			now := time.Now()
			s.deaf.Store(&now)
		}
		return nil, err
	}
	s.read(ctx, c, new(driver.Notification)) // the first read takes longest
	return c, nil
}

// tune makes the connection listen, and keeps it from being ended when idle. Unless it
// has a backend to itself, tune proves that a notification arrives.
func (s *Store) tune(ctx context.Context, c *pgx.Conn, who []string) error {
	channels := []string{s.channel.all()}
	if who != nil {
		channels = []string{s.channel.of(driver.Everyone)}
		for _, w := range who {
			channels = append(channels, s.channel.of(w))
		}
	}
	sql := ""
	for _, c := range channels {
		sql += `listen ` + pgx.Identifier{c}.Sanitize() + `; `
	}
	pid := fmt.Sprint(c.PgConn().PID())
	sql += full(s.Tables, `select pg_catalog.pg_backend_pid(), case when pg_catalog.pg_backend_pid() {=} `+pid+`
		and pg_catalog.current_setting('idle_session_timeout', true) {<>} '0' then pg_catalog.set_config('idle_session_timeout', '0', false) end`)
	results, err := c.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		return err
	}
	if rows := results[len(results)-1].Rows; len(rows) == 1 && string(rows[0][0]) == pid {
		return nil
	}
	nonce := "? " + rand.Text()
	err = s.beats.Use(ctx, func(other *pgx.Conn) error {
		_, err := other.Exec(ctx, `select pg_catalog.pg_notify($1, $2)`, pgx.QueryExecModeExec, channels[0], nonce)
		return err
	})
	if err != nil {
		return err
	}
	proof, cancel := context.WithTimeout(ctx, proofTime)
	defer cancel()
	for {
		n, err := c.WaitForNotification(proof)
		switch {
		case err == nil && n.Payload == nonce:
			return nil
		case err == nil:
		case ctx.Err() != nil || proof.Err() == nil:
			return err
		default:
			// A connection of the pooler may now listen for nobody.
			unlisten(c)
			return errDeaf
		}
	}
}

// unlisten makes a connection that has listened the spare one, or closes it.
func (s *Store) unlisten(c *pgx.Conn) {
	if c.IsClosed() || unlisten(c) != nil || !s.spare.CompareAndSwap(nil, c) {
		shut(c)
	}
	if s.closed.Load() { // Close, which sets that first, may have missed it
		shut(s.spare.Swap(nil))
	}
}

func unlisten(c *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second/2)
	defer cancel()
	_, err := c.PgConn().Exec(ctx, `unlisten *`).ReadAll()
	for err == nil { // drop what has come since
		none, cancel := context.WithCancel(ctx)
		cancel()
		if _, late := c.WaitForNotification(none); late != nil {
			break
		}
	}
	return err
}

// payload is what a notification says: the id, and for whom it is meant.
func payload(w sqlstore.Write) string {
	return hex.EncodeToString(w.ID) + " " + hex.EncodeToString([]byte(w.Notify))
}

// notificationOf reads a payload. Anyone may send anything: a payload that is not ours means
// that anything may have changed. The proofs of other stores mean nothing.
func notificationOf(payload string) (h driver.Notification, ok bool) {
	id, wake, _ := strings.Cut(payload, " ")
	if id == "?" {
		return h, false
	}
	key, err := hex.DecodeString(id)
	word, err2 := hex.DecodeString(wake)
	if err != nil || err2 != nil || len(key) < 2 || len(word) == 0 {
		return h, true
	}
	h = driver.Notification{Key: driver.Key{Space: driver.Space(key[0]), Name: string(key[1:])}, To: string(word)}
	if h.Key.Check() != nil {
		return driver.Notification{}, true
	}
	return h, true
}
