package cassandra

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
)

// A tap is between a session and the nodes. It knows which statement each frame
// carries, and does with it what its test says.
type tap struct {
	mu       sync.Mutex
	fate     func(c *call) fate // nil: pass
	prepared map[string]string  // texts by the ids that nodes gave them
	calls    []*call            // all that were decided on, in order
	nodes    []net.Conn
}

// A call is one execution of a prepared statement on the tapped table, or on the schema.
type call struct {
	text        string
	host        string // of the coordinator
	consistency gocql.Consistency
	serial      gocql.Consistency // 0 if it says nothing
	values      [][]byte
	send        func() // sends it to the node, and returns when that has answered: only once
	done        chan struct{}
	fate        fate
}

// is says whether the call is of a kind: "update", "insert", "delete", "select".
func (c *call) is(kind string) bool { return strings.HasPrefix(c.text, kind) }

// A fate is what becomes of a call.
type fate int

const (
	pass     fate = iota
	cut           // it is carried out, and the connection breaks instead of an answer
	lost          // the connection breaks, and the node never hears of it
	silence       // nobody hears of it, and nothing breaks
	timedOut      // it is carried out, and the node says that it timed out
	busy          // it is not, and the node says so all the same
	failed        // it is not, and the node says that something went wrong
)

// set changes what happens from now on, and forgets the calls so far.
func (p *tap) set(fate func(c *call) fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fate, p.calls = fate, nil
}

// seen are the calls of a kind since set.
func (p *tap) seen(kind string) (some []*call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		if c.is(kind) {
			some = append(some, c)
		}
	}
	return some
}

// tapped is a session of its own for a test, and the tap in it.
func tapped(t testing.TB, change func(*gocql.ClusterConfig)) (*tap, *gocql.Session) {
	t.Helper()
	p := &tap{prepared: make(map[string]string)}
	c := config(t, cluster(t))
	c.Dialer, c.ProtoVersion = p, 4
	t.Cleanup(func() { // what was never sent keeps its connection open
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, node := range p.nodes {
			node.Close()
		}
	})
	if change != nil {
		change(c)
	}
	return p, connect(t, c)
}

func (p *tap) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	node, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.nodes = append(p.nodes, node)
	p.mu.Unlock()
	ours, theirs := net.Pipe()
	l := &tapLine{tap: p, host: addr, client: ours, node: node, streams: make(map[uint16]*call), preparing: make(map[uint16]string)}
	go l.forward()
	go l.back()
	return tapConn{theirs, node.RemoteAddr()}, nil
}

type tapConn struct {
	net.Conn
	remote net.Addr
}

func (c tapConn) RemoteAddr() net.Addr { return c.remote }

// A tapLine is one connection.
type tapLine struct {
	tap          *tap
	host         string
	client, node net.Conn

	mu        sync.Mutex
	streams   map[uint16]*call  // that the node has been sent
	preparing map[uint16]string // texts
	late      int               // calls that the client does not wait for any more
	gone      bool              // the client
}

// leave breaks the connection to the client; the one to the node goes on until
// all that is late has been sent.
func (l *tapLine) leave() {
	l.client.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone = true; l.late == 0 {
		l.node.Close()
	}
}

func readFrame(r io.Reader) (frame []byte, stream uint16, op byte, err error) {
	head := make([]byte, 9)
	if _, err = io.ReadFull(r, head); err != nil {
		return nil, 0, 0, err
	}
	frame = append(head, make([]byte, binary.BigEndian.Uint32(head[5:]))...)
	_, err = io.ReadFull(r, frame[9:])
	return frame, binary.BigEndian.Uint16(head[2:]), head[4], err
}

const (
	opError   = 0x00
	opResult  = 0x08
	opPrepare = 0x09
	opExecute = 0x0a
)

func (l *tapLine) forward() {
	defer l.leave()
	for {
		frame, stream, op, err := readFrame(l.client)
		if err != nil {
			return
		}
		switch op {
		case opPrepare:
			n := binary.BigEndian.Uint32(frame[9:])
			l.mu.Lock()
			l.preparing[stream] = string(frame[13 : 13+n])
			l.mu.Unlock()
		case opExecute:
			if c := l.read(frame[9:]); c != nil {
				c.done = make(chan struct{})
				l.mu.Lock()
				l.late++
				l.mu.Unlock()
				c.send = sync.OnceFunc(func() {
					l.mu.Lock()
					l.streams[stream] = c
					l.mu.Unlock()
					l.node.Write(frame)
					<-c.done
				})
				go l.decide(c, stream)
				continue
			}
		}
		if _, err := l.node.Write(frame); err != nil {
			return
		}
	}
}

// read is what an EXECUTE carries, or nil if it is not of ours.
func (l *tapLine) read(b []byte) *call {
	short := func() int { n := int(binary.BigEndian.Uint16(b)); b = b[2:]; return n }
	n := short()
	l.tap.mu.Lock()
	text := l.tap.prepared[string(b[:n])]
	l.tap.mu.Unlock()
	b = b[n:]
	if !strings.Contains(text, "records\"") && !strings.Contains(text, ".accounts_late ") && !strings.Contains(text, " system_schema.") {
		return nil
	}
	c := &call{text: text, host: l.host, consistency: gocql.Consistency(short())}
	flags := b[0]
	b = b[1:]
	if flags&0x01 != 0 {
		for n := short(); n > 0; n-- {
			size := int(int32(binary.BigEndian.Uint32(b)))
			b = b[4:]
			if size < 0 {
				c.values = append(c.values, nil)
				continue
			}
			c.values, b = append(c.values, b[:size]), b[size:]
		}
	}
	if flags&0x04 != 0 {
		b = b[4:]
	}
	if flags&0x08 != 0 {
		b = b[4+binary.BigEndian.Uint32(b):]
	}
	if flags&0x10 != 0 {
		c.serial = gocql.Consistency(short())
	}
	return c
}

func (l *tapLine) decide(c *call, stream uint16) {
	l.tap.mu.Lock()
	f := l.tap.fate
	l.tap.calls = append(l.tap.calls, c)
	l.tap.mu.Unlock()
	if f != nil {
		c.fate = f(c)
	}
	switch c.fate {
	case pass:
		c.send()
	case cut:
		c.send()
		l.leave()
	case lost:
		l.leave()
	case timedOut:
		c.send()
		fallthrough
	case busy:
		// WRITE_TIMEOUT of type CAS at SERIAL, none of two have answered.
		l.client.Write(errorFrame(stream, 0x1100, []byte{0, 8, 0, 0, 0, 0, 0, 0, 0, 2, 0, 3, 'C', 'A', 'S'}))
	case failed:
		l.client.Write(errorFrame(stream, 0, nil))
	}
}

func errorFrame(stream uint16, code uint32, rest []byte) []byte {
	body := binary.BigEndian.AppendUint32(nil, code)
	body = append(append(body, 0, 4, 't', 'e', 's', 't'), rest...)
	frame := []byte{0x84, 0, byte(stream >> 8), byte(stream), opError}
	return append(binary.BigEndian.AppendUint32(frame, uint32(len(body))), body...)
}

func (l *tapLine) back() {
	defer l.client.Close()
	for {
		frame, stream, op, err := readFrame(l.node)
		l.mu.Lock()
		if err != nil {
			for _, c := range l.streams {
				close(c.done)
			}
			clear(l.streams)
			l.mu.Unlock()
			return
		}
		c, text := l.streams[stream], l.preparing[stream]
		delete(l.streams, stream)
		delete(l.preparing, stream)
		l.mu.Unlock()
		if op == opResult && text != "" && binary.BigEndian.Uint32(frame[9:]) == 4 {
			n := binary.BigEndian.Uint16(frame[13:])
			l.tap.mu.Lock()
			l.tap.prepared[string(frame[15:15+n])] = text
			l.tap.mu.Unlock()
		}
		if c == nil || c.fate == pass {
			l.client.Write(frame)
		}
		if c != nil {
			close(c.done)
			l.mu.Lock()
			if l.late--; l.late == 0 && l.gone {
				l.node.Close()
			}
			l.mu.Unlock()
		}
	}
}
