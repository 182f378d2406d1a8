package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"time"
)

// A lane is a connection of the caller's pool that is set up for us: whatever
// the DSN says, statements in it are READ COMMITTED, commit by themselves, wait
// a second for a locked row, and tell the time in UTC. It does not go back to
// the pool, which would lend it to others with these settings: it is closed.
type lane struct {
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
	used  time.Time
}

// laneIdle is how long a lane is kept that nobody uses. One that is used is kept
// for as long as it works: the pool may have no other to give. So is that for
// heartbeats, which with a long TTL are far apart.
const laneIdle = 30 * time.Second

// setUp is read differently by MariaDB and MySQL. It is what changes the meaning of
// our statements, or may stop them, of all that the caller, the server or its
// init_connect may have set: time zones have hours that come twice, for example. A
// default is what the server's variables say, so none is asked for. autocommit
// goes off and on again to end a transaction that has begun already.
const setUp = `
set session autocommit = 0, autocommit = 1, completion_type = 0, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1,
	time_zone = _ascii'+00:00', timestamp = default, sql_mode = _ascii'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION',
	character_set_client = utf8mb4, character_set_connection = utf8mb4, character_set_results = utf8mb4,
	sql_select_limit = 18446744073709551615, sql_big_selects = 1, sql_safe_updates = 0, unique_checks = 1, foreign_key_checks = 1
	/*M!100600 , tx_isolation = 'READ-COMMITTED', tx_read_only = 0, max_statement_time = 0 */
	/*!80000 , transaction_isolation = 'READ-COMMITTED', transaction_read_only = 0, max_execution_time = 0 */`

func openLane(ctx context.Context, db *sql.DB) (*lane, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	l := &lane{conn: conn, stmts: make(map[string]*sql.Stmt)}
	if _, err := conn.ExecContext(ctx, setUp); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// close ends the connection, for the server and for the pool.
func (l *lane) close() {
	l.conn.Raw(func(any) error { return driver.ErrBadConn })
	l.conn.Close()
}

// check tells before a statement is sent whether the server has hung up. It
// takes some time, and what was used just now will do.
func (l *lane) check(ctx context.Context) error {
	if time.Since(l.used) < 20*time.Millisecond {
		return nil
	}
	return l.conn.Raw(func(c any) error {
		if r, ok := c.(driver.SessionResetter); ok {
			return r.ResetSession(ctx)
		}
		return nil
	})
}

// prepare keeps a statement for the next time. The server has room for 16,382 of
// all its clients, by default; so only what is used often is kept.
func (l *lane) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	s := l.stmts[query]
	if s == nil {
		var err error
		if s, err = l.conn.PrepareContext(ctx, query); err != nil {
			return nil, err
		}
		l.stmts[query] = s
	}
	return s, nil
}

func (l *lane) exec(ctx context.Context, query string, args ...any) (sql.Result, error) {
	s, err := l.prepare(ctx, query)
	if err != nil {
		return nil, err
	}
	return s.ExecContext(ctx, args...)
}

func (l *lane) query(ctx context.Context, query string, row func(*sql.Rows) error, args ...any) error {
	s, err := l.prepare(ctx, query)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(ctx, args...)
	return each(rows, err, row)
}

// once is query with a statement that is not kept.
func (l *lane) once(ctx context.Context, query string, row func(*sql.Rows) error, args ...any) error {
	rows, err := l.conn.QueryContext(ctx, query, args...)
	return each(rows, err, row)
}

func each(rows *sql.Rows, err error, row func(*sql.Rows) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// lanes lends at most so many lanes, each to one at a time, and opens them when
// they are needed.
type lanes struct {
	db   *sql.DB
	free chan struct{} // has room for each that is lent

	mu     sync.Mutex
	idle   []*lane // the last used at the end
	keep   int     // how many of them stay, used or not
	timer  *time.Timer
	closed bool

	// A program that soon ends does without lanes that are only needed now and
	// then: at first they are those that the lender has no use for.
	lender *lanes
	loans  int // how many are left
}

func newLanes(db *sql.DB, n int) *lanes {
	return &lanes{db: db, free: make(chan struct{}, n)}
}

var errClosed = errors.New("the store is closed")

// use lends a lane to f. A lane that had an error is not used again, unless the
// server told it: then the connection is sound.
func (p *lanes) use(ctx context.Context, f func(*lane) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case p.free <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-p.free }()
	if l := p.borrow(ctx); l != nil {
		return p.lender.with(l, f)
	}
	l, err := p.take(ctx)
	if err != nil {
		return err
	}
	return p.with(l, f)
}

// with calls f with a lane that goes to p afterwards.
func (p *lanes) with(l *lane, f func(*lane) error) (err error) {
	good := false
	defer func() { p.put(l, good) }() // also if f panics
	err = f(l)
	good = err == nil || sound(err)
	return err
}

// take is the lane that was used last, or a new one.
func (p *lanes) take(ctx context.Context) (*lane, error) {
	l, closed := p.unused(ctx)
	switch {
	case closed:
		return nil, errClosed
	case l == nil:
		return openLane(ctx, p.db)
	}
	return l, nil
}

// unused is the lane that was used last, if there is one that works.
func (p *lanes) unused(ctx context.Context) (l *lane, closed bool) {
	for {
		p.mu.Lock()
		l, closed = nil, p.closed
		if n := len(p.idle) - 1; n >= 0 {
			l, p.idle = p.idle[n], p.idle[:n]
		}
		p.mu.Unlock()
		if l == nil || l.check(ctx) == nil {
			return l, closed
		}
		l.close()
	}
}

// borrow is a lane of the lender's, or nil.
func (p *lanes) borrow(ctx context.Context) *lane {
	p.mu.Lock()
	may := p.loans > 0 && len(p.idle) == 0 && !p.closed
	p.mu.Unlock()
	if !may {
		return nil
	}
	l, _ := p.lender.unused(ctx)
	if l != nil {
		p.mu.Lock()
		p.loans--
		p.mu.Unlock()
	}
	return l
}

func (p *lanes) put(l *lane, good bool) {
	p.mu.Lock()
	if good && !p.closed {
		l.used = time.Now()
		p.idle = append(p.idle, l)
		if p.timer == nil {
			p.timer = time.AfterFunc(laneIdle, p.trim)
		}
		l = nil
	}
	p.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// trim closes the lanes that nobody needs.
func (p *lanes) trim() {
	p.mu.Lock()
	n := 0
	for n < len(p.idle)-p.keep && time.Since(p.idle[n].used) >= laneIdle {
		n++
	}
	old := p.idle[:n:n]
	p.idle = p.idle[n:]
	p.timer = nil
	if len(p.idle) > p.keep && !p.closed {
		p.timer = time.AfterFunc(laneIdle-time.Since(p.idle[0].used), p.trim)
	}
	p.mu.Unlock()
	for _, l := range old {
		l.close()
	}
}

// close closes the lanes that are idle now, and others when they come back.
func (p *lanes) close() {
	p.mu.Lock()
	idle := p.idle
	p.idle, p.closed = nil, true
	if p.timer != nil {
		p.timer.Stop()
	}
	p.mu.Unlock()
	for _, l := range idle {
		l.close()
	}
}
