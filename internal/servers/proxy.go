package servers

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"time"
)

// The directions of a connection.
const (
	toServer = iota
	toClient
)

// A Proxy forwards TCP connections to a server and harms them on request.
type Proxy struct {
	target string
	ln     net.Listener
	wg     sync.WaitGroup

	mu        sync.Mutex
	changed   *sync.Cond // signals a change of something below, or of a link's cut
	links     map[*link]bool
	closed    bool
	refuse    bool
	noCancels bool // connections that cancel a statement
	stall     bool
	black     [2]bool
	delay     time.Duration
	after     *rule                   // which replies are thrown away, by their requests
	reply     func(reply []byte) bool // the same, by the replies
	replies   int
	cuts      int
}

// A rule says which requests lose their reply.
type rule struct {
	match   func(sql string) bool
	commits bool // only replies that end a transaction
	left    int
}

// A link is a connection of a client and its connection to the server.
type link struct {
	conns  [2]net.Conn // the client's, the server's
	cut    bool
	gone   chan struct{} // closed with cut
	lost   [2]bool       // bytes in that direction
	wire   wire
	doomed *rule  // by which the next reply is thrown away
	held   []byte // the beginning of that reply
}

// NewProxy starts a proxy to a server, a host and a port.
func NewProxy(ctx context.Context, target string) (*Proxy, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return newProxy(ln, target), nil
}

func newProxy(ln net.Listener, target string) *Proxy {
	p := &Proxy{target: target, ln: ln, links: map[*link]bool{}}
	p.changed = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	return p
}

// Addr is where clients connect, a host and a port.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// Close cuts all connections and ends the proxy.
func (p *Proxy) Close() {
	p.set(func() { p.closed = true; p.cutAll() })
	p.ln.Close()
	p.wg.Wait()
}

// Cut resets all connections. New ones work.
func (p *Proxy) Cut() { p.set(p.cutAll) }

// Refuse resets all connections, and new ones as soon as they are made, until
// Refuse(false).
func (p *Proxy) Refuse(on bool) {
	p.set(func() {
		if p.refuse = on; on {
			p.cutAll()
		}
	})
}

// RefuseCancels closes the connections that PostgreSQL's clients make to cancel a statement.
func (p *Proxy) RefuseCancels() { p.set(func() { p.noCancels = true }) }

// cancels reports whether what a client sends first is a request to cancel a statement.
func cancels(first []byte) bool {
	return len(first) == 16 && binary.BigEndian.Uint32(first[4:]) == 80877102
}

// Blackhole loses all bytes that go in a direction, and the ends of
// connections too, as a partition does; new connections are not answered.
// Blackhole(false, false) heals: connections that have lost something are reset.
func (p *Proxy) Blackhole(intoServer, intoClient bool) {
	p.set(func() {
		p.black = [2]bool{intoServer, intoClient}
		for l := range p.links {
			if !intoServer && !intoClient && (l.lost[toServer] || l.lost[toClient]) {
				p.cutLink(l, true)
			}
		}
	})
}

// Stall holds all bytes back, and delivers them after Stall(false).
func (p *Proxy) Stall(on bool) { p.set(func() { p.stall = on }) }

// Delay makes bytes arrive that much later, in each direction.
func (p *Proxy) Delay(d time.Duration) { p.set(func() { p.delay = d }) }

// CutAfter passes on the next n requests whose SQL contains a string, and resets
// their connections instead of passing on the reply: the request was applied and
// the client does not know. The reply to a request that the server refused is passed
// on and does not count. The empty string is in every request, also in a pool's ping.
//
// The SQL of prepared statements is known if they were prepared by way of this
// proxy. It understands PostgreSQL and MySQL, not encrypted; in any other protocol
// a request is what arrives at once, and so is its reply.
func (p *Proxy) CutAfter(sqlSubstring string, n int) {
	p.set(func() {
		p.after = &rule{match: func(sql string) bool { return strings.Contains(sql, sqlSubstring) }, left: n}
	})
}

// CutAfterCommit is CutAfter for what commits: COMMIT, and writes outside
// of a transaction, recognized by their keywords.
func (p *Proxy) CutAfterCommit(n int) {
	p.set(func() { p.after = &rule{match: writes, commits: true, left: n} })
}

// CutOnReply throws away the next n replies for which match returns true, and
// resets their connections. A reply is what arrives at once.
func (p *Proxy) CutOnReply(match func(reply []byte) bool, n int) {
	p.set(func() { p.reply, p.replies = match, n })
}

// Cuts is how many connections CutAfter, CutAfterCommit and CutOnReply have cut.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

var (
	locking = regexp.MustCompile(`(?i)\bFOR\s+(NO\s+KEY\s+)?UPDATE\b`)
	writing = regexp.MustCompile(`(?i)^\s*END\b|\b(INSERT|UPDATE|DELETE|MERGE|REPLACE|CALL|COMMIT)\b`)
)

func writes(sql string) bool { return writing.MatchString(locking.ReplaceAllString(sql, "")) }

// set changes what the proxy does.
func (p *Proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.changed.Broadcast()
}

func (p *Proxy) cutAll() {
	for l := range p.links {
		p.cutLink(l, true)
	}
}

// cutLink ends a link, by resets or as TCP connections end. p.mu is held.
func (p *Proxy) cutLink(l *link, reset bool) {
	if l.cut {
		return
	}
	l.cut = true
	close(l.gone)
	delete(p.links, l)
	for _, c := range l.conns {
		if c, ok := c.(interface {
			SetLinger(int) error
			Close() error
		}); ok {
			if reset {
				c.SetLinger(0)
			}
			c.Close()
		}
	}
	p.changed.Broadcast()
}

func (p *Proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		l := &link{conns: [2]net.Conn{c, nil}, gone: make(chan struct{})}
		p.set(func() {
			p.links[l] = true
			if p.refuse || p.closed {
				p.cutLink(l, true)
				return
			}
			p.wg.Go(func() { p.connect(l) })
		})
	}
}

// connect connects a link to the server, when nothing is in the way, and
// forwards until its end.
func (p *Proxy) connect(l *link) {
	p.mu.Lock()
	for !l.cut && (p.stall || p.black[toServer] || p.black[toClient]) {
		p.changed.Wait()
	}
	cut := l.cut
	p.mu.Unlock()
	if cut {
		return
	}
	c, err := net.Dial("tcp", p.target)
	p.set(func() {
		switch {
		case err != nil:
			p.cutLink(l, true)
		case l.cut:
			c.Close()
		default:
			l.conns[1] = c
			p.wg.Go(func() { p.forward(l, toServer) })
			p.wg.Go(func() { p.forward(l, toClient) })
		}
	})
}

// A chunk is what arrived at once.
type chunk struct {
	data []byte
	at   time.Time
	err  error // the end
}

// forward moves what a link brings in a direction, until its end.
func (p *Proxy) forward(l *link, dir int) {
	src, dst := l.conns[dir], l.conns[1-dir]
	chunks := make(chan chunk, 1000)
	p.wg.Go(func() {
		for buf := make([]byte, 64<<10); ; {
			n, err := src.Read(buf)
			select {
			case chunks <- chunk{bytes.Clone(buf[:n]), time.Now(), err}:
			case <-l.gone:
				return
			}
			if err != nil {
				return
			}
		}
	})
	for {
		var c chunk
		select {
		case c = <-chunks:
		case <-l.gone:
			return
		}
		p.mu.Lock()
		late := time.Until(c.at.Add(p.delay))
		p.mu.Unlock()
		if late > 0 {
			select {
			case <-time.After(late):
			case <-l.gone:
				return
			}
		}
		data, err := p.pass(l, dir, c)
		if err == nil && len(data) > 0 {
			_, err = dst.Write(data)
		}
		if err != nil {
			p.set(func() { p.cutLink(l, false) })
			return
		}
	}
}

// pass waits until a chunk may go on, and returns the bytes that do.
func (p *Proxy) pass(l *link, dir int, c chunk) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; ; p.changed.Wait() {
		if l.cut {
			return nil, io.EOF
		}
		if p.stall {
			continue
		}
		if !p.black[dir] && !l.lost[dir] {
			break
		}
		l.lost[dir] = true
		if c.err == nil {
			return nil, nil
		}
	}
	if c.err != nil {
		return c.data, c.err
	}
	if dir == toServer && p.noCancels && cancels(c.data) {
		p.cutLink(l, false)
		return nil, io.EOF
	}
	if dir == toServer {
		sql, runs := l.wire.request(c.data)
		if r := p.after; runs && l.doomed == nil && r != nil && r.left > 0 && r.match(sql) {
			r.left--
			l.doomed = r
		}
		return c.data, nil
	}
	if p.replies > 0 && p.reply(c.data) {
		p.replies--
		p.cuts++
		p.cutLink(l, true)
		return nil, io.EOF
	}
	l.wire.reply(c.data)
	if l.doomed == nil {
		return c.data, nil
	}
	// The reply to a doomed request is kept here until all of it has come.
	l.held = append(l.held, c.data...)
	whole, applied, ended := l.wire.verdict(l.held)
	switch {
	case !whole:
		return nil, nil
	case applied && (ended || !l.doomed.commits):
		p.cuts++
		p.cutLink(l, true)
		return nil, io.EOF
	}
	l.doomed.left++
	data := l.held
	l.doomed, l.held = nil, nil
	return data, nil
}
