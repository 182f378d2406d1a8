package cassandra

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/holdfast-lock/holdfast/driver"
)

// calls sends statements to coordinators of its own choice.
type calls struct {
	session *gocql.Session
	dc      string
	serial  gocql.Consistency // of the rounds of consensus
	quorum  gocql.Consistency // of what they have decided, and of stale reads
	names   lane
	beats   lane
	deaf    deaf
}

// A lane bounds how many statements are under way at a time.
type lane chan struct{}

// maxCalls is how many statements of a lane are under way at a time: enough to
// keep a few nodes busy, few enough that none of them waits long enough to time
// out.
const maxCalls = 64

func (c *calls) init(session *gocql.Session, dc string, local bool) {
	c.session, c.dc = session, dc
	c.serial, c.quorum = gocql.Serial, gocql.Quorum
	if local {
		c.serial, c.quorum = gocql.LocalSerial, gocql.LocalQuorum
	}
	c.names, c.beats = make(lane, maxCalls), make(lane, maxCalls)
	c.deaf.init()
}

func (l lane) enter(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l lane) leave() { <-l }

// each calls f for 0 to n-1, as many at a time as the lane has room for.
func (l lane) each(ctx context.Context, n int, f func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		if errs[i] = l.enter(ctx); errs[i] != nil {
			continue
		}
		if i == n-1 { // in this goroutine: most calls have one statement
			errs[i] = f(i)
			l.leave()
			continue
		}
		wg.Go(func() {
			defer l.leave()
			errs[i] = f(i)
		})
	}
	wg.Wait()
	return errs
}

// A node that is alive answers within its own time limits, which are two seconds
// by default. One that has not answered in slow is given up, and sooner if the
// caller has no time to wait.
const (
	slow    = 2500 * time.Millisecond
	minWait = 250 * time.Millisecond
)

// patience is how long to wait for one coordinator, so that there is time left
// for another.
func patience(ctx context.Context) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return slow
	}
	return min(max(time.Until(end)/2, minWait), slow)
}

// send sends a statement to coordinators of a row, one after the other, until
// one answers or refuses it: run gets the query, and reads the answer. It must
// be harmless to send the statement again. unknown says whether an earlier one
// may have done its work.
func (c *calls) send(ctx context.Context, row []byte, text string, args []any, run func(ctx context.Context, q *gocql.Query) error) (unknown bool, err error) {
	return c.sendWhile(ctx, func(error) bool { return true }, row, text, args, run)
}

// answered says that a coordinator has reported its failure, and does no more: what
// it has begun comes before anything that is sent from now on, or never.
func answered(err error) bool {
	var answer gocql.RequestError
	return errors.As(err, &answer) || errors.Is(err, gocql.ErrNoConnections)
}

// sendWhile is send, but goes on only after an error that is harmless.
func (c *calls) sendWhile(ctx context.Context, harmless func(error) bool, row []byte, text string, args []any, run func(ctx context.Context, q *gocql.Query) error) (unknown bool, err error) {
	failed := make(map[string]int) // how often, by host; from 2 on another is asked
	for try := 0; ; try++ {
		host, others := c.coordinator(row, failed)
		if c.session.Closed() {
			return unknown, driver.ErrClosed
		}
		if host == "" {
			err = gocql.ErrNoConnections
		} else {
			wait, sent := patience(ctx), time.Now()
			one, cancel := context.WithTimeout(ctx, wait)
			q := c.session.Query(text, args...).SetHostID(host).
				Consistency(c.quorum).SerialConsistency(c.serial).RetryPolicy(nil)
			err = run(one, q)
			cancel()
			if errors.Is(err, gocql.ErrSessionClosed) {
				err = driver.ErrClosed
			}
			if err == nil || refused(err) || err == driver.ErrClosed {
				c.deaf.heard(host, err == nil)
				for id, n := range failed {
					if err == nil && n > 1 && id != host { // it is alive, but cannot, and another can
						c.deaf.rest(id)
					}
				}
				return unknown, err
			}
			unknown = unknown || !errors.Is(err, gocql.ErrNoConnections)
			var answer gocql.RequestError
			switch {
			case errors.As(err, &answer):
				c.deaf.heard(host, false)
				if failed[host]++; !again(err) {
					failed[host]++
				}
			case ctx.Err() == nil || time.Since(sent) >= slow:
				c.deaf.add(host, sent)
			}
		}
		if ctx.Err() != nil || !harmless(err) {
			return unknown, err
		}
		if !again(err) && try >= len(others) {
			return unknown, err
		}
		// Other clients that were timed out try again as well.
		pause := time.NewTimer(time.Duration(rand.Int64N(int64(20*time.Millisecond) << min(try, 5))))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return unknown, err
		}
	}
}

// coordinator is the node to ask about a row, the same for every client as long
// as it is up (rendezvous hashing), and all others. A nil row: any node. One that
// is deaf, or has failed twice, is only asked if all are or have.
func (c *calls) coordinator(row []byte, failed map[string]int) (host string, others []string) {
	var best uint64
	deaf := true
	for _, h := range c.session.GetHosts() {
		if !h.IsUp() || c.dc != "" && h.DataCenter() != c.dc {
			continue
		}
		id := h.HostID()
		var weight uint64
		if row == nil {
			weight = rand.Uint64()
		} else {
			f := fnv.New64a()
			f.Write(row)
			f.Write([]byte(id))
			weight = mix(f.Sum64())
		}
		isDeaf := c.deaf.is(id) || failed[id] > 1
		if host == "" || deaf && !isDeaf || deaf == isDeaf && weight > best {
			if host != "" {
				others = append(others, host)
			}
			host, best, deaf = id, weight, isDeaf
		} else {
			others = append(others, id)
		}
	}
	return host, others
}

// mix spreads the bits of a hash whose last bytes were alike.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// refused says that a node has understood a statement and will not carry it out,
// and neither will another.
func refused(err error) bool {
	var answer gocql.RequestError
	if !errors.As(err, &answer) {
		return false
	}
	switch answer.Code() {
	case gocql.ErrCodeSyntax, gocql.ErrCodeInvalid, gocql.ErrCodeUnauthorized, gocql.ErrCodeConfig,
		gocql.ErrCodeCredentials, gocql.ErrCodeProtocol, gocql.ErrCodeAlreadyExists, gocql.ErrCodeTruncate:
		return true
	}
	return false
}

// again says that a statement is worth sending again for as long as there is
// time: too many were writing the same row.
func again(err error) bool {
	var answer gocql.RequestError
	if !errors.As(err, &answer) {
		return false
	}
	switch answer.Code() {
	case gocql.ErrCodeWriteTimeout, gocql.ErrCodeReadTimeout, gocql.ErrCodeCASWriteUnknown, gocql.ErrCodeOverloaded:
		return true
	}
	return false
}

// crowded makes a BusyError of an error that came from too many statements at
// once, and not from nodes that are gone: a round of consensus was interrupted, or
// there was no time left while other statements were answered.
func (c *calls) crowded(err error, began time.Time) error {
	var write *gocql.RequestErrWriteTimeout
	var unknown *gocql.RequestErrCASWriteUnknown
	switch {
	case errors.As(err, &write) && write.WriteType == "CAS", errors.As(err, &unknown),
		errors.Is(err, context.DeadlineExceeded) && c.deaf.servedSince(began):
		return &driver.BusyError{Err: err}
	}
	return err
}

// deaf remembers which nodes do not answer.
type deaf struct {
	mu    sync.Mutex
	until map[string]time.Time // not asked until then, if there is another
	last  map[string]time.Time // when it last answered
	// served is when a statement was last carried out.
	served time.Time
}

// rest is how long a node that did not answer is left alone.
const rest = 5 * time.Second

func (d *deaf) init() {
	d.until, d.last = make(map[string]time.Time), make(map[string]time.Time)
}

// add notes that a node has not answered what was sent to it. One that has
// answered something else since is only slow.
func (d *deaf) add(host string, sent time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last[host].Before(sent) {
		d.until[host] = time.Now().Add(rest)
	}
}

// rest notes that a node cannot do what another can.
func (d *deaf) rest(host string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.until[host] = time.Now().Add(rest)
}

func (d *deaf) heard(host string, served bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last[host] = time.Now(); served {
		d.served = d.last[host]
	}
	delete(d.until, host)
}

// servedSince says whether any statement has been carried out since.
func (d *deaf) servedSince(t time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.served.After(t)
}

func (d *deaf) is(host string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Now().Before(d.until[host])
}

// keyspace is that of the session.
func (c *calls) keyspace(context.Context) (string, error) {
	if ks := c.session.Query("").Keyspace(); ks != "" {
		return ks, nil
	}
	return "", errors.New("which keyspace? name it in Options.Keyspace or in the session's configuration")
}
