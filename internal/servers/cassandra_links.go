package servers

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

// errWhole is what a cluster without links says to being cut.
var errWhole = errors.New("this cluster was started without Cuttable")

// How a node is cut off.
const (
	joined = iota
	parted // from the other nodes
	cutOff // from clients too
)

// links are the proxies by which the nodes of a cluster are reached, of others
// and of clients, each at the address that it tells. The nodes listen elsewhere.
type links struct {
	between [Nodes][Nodes]*Proxy // of connections that one makes to another
	clients [Nodes]*Proxy
	doors   []net.Listener
	wg      sync.WaitGroup

	mu  sync.Mutex
	how [Nodes]int
}

func newLinks(hosts, bind []string, native, storage int) (*links, error) {
	l := &links{}
	at := func(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
	for to := range Nodes {
		ln, err := net.Listen("tcp", at(hosts[to], native))
		if err != nil {
			l.close()
			return nil, err
		}
		l.clients[to] = newProxy(ln, at(bind[to], native))
		door, err := net.Listen("tcp", at(hosts[to], storage))
		if err != nil {
			l.close()
			return nil, err
		}
		l.doors = append(l.doors, door)
		var calls [Nodes]handed
		for from := range Nodes {
			calls[from] = handed{make(chan net.Conn), make(chan struct{}), door.Addr(), new(sync.Once)}
			l.between[from][to] = newProxy(calls[from], at(bind[to], storage))
		}
		l.wg.Go(func() { l.sort(door, hosts, calls) })
	}
	return l, nil
}

// sort gives each connection that comes in at a node's door to the proxy for
// those of the node that made it.
func (l *links) sort(door net.Listener, hosts []string, calls [Nodes]handed) {
	for {
		c, err := door.Accept()
		if err != nil {
			return
		}
		l.wg.Go(func() {
			c.SetReadDeadline(time.Now().Add(10 * time.Second))
			head, from := caller(c)
			c.SetReadDeadline(time.Time{})
			n := slices.Index(hosts, from)
			if n < 0 || !calls[n].hand(&begun{c.(*net.TCPConn), head}) {
				c.Close()
			}
		})
	}
}

// caller reads the beginning of a connection between nodes, and in it the
// address of the one that made it: after a magic number and flags its length,
// address and port.
func caller(r io.Reader) (head []byte, host string) {
	head = make([]byte, 13)
	if _, err := io.ReadFull(r, head); err != nil || binary.BigEndian.Uint32(head) != 0xca552dfa || head[8] != 6 {
		return head, ""
	}
	return head, net.IP(head[9:13]).String()
}

// A begun connection is one whose head has been read.
type begun struct {
	*net.TCPConn
	head []byte
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.head) == 0 {
		return b.TCPConn.Read(p)
	}
	n := copy(p, b.head)
	b.head = b.head[n:]
	return n, nil
}

// handed is a listener whose connections it is handed.
type handed struct {
	conns  chan net.Conn
	closed chan struct{}
	addr   net.Addr
	once   *sync.Once
}

func (h handed) hand(c net.Conn) bool {
	select {
	case h.conns <- c:
		return true
	case <-h.closed:
		return false
	}
}

func (h handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

func (h handed) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

func (h handed) Addr() net.Addr { return h.addr }

func (l *links) close() {
	for _, door := range l.doors {
		door.Close()
	}
	for to := range Nodes {
		for from := range Nodes {
			if p := l.between[from][to]; p != nil {
				p.Close()
			}
		}
		if p := l.clients[to]; p != nil {
			p.Close()
		}
	}
	l.wg.Wait()
}

// set has node n cut off, or joined.
func (l *links) set(n, how int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.how[n] = how
	l.clients[n].Blackhole(how == cutOff, how == cutOff)
	for other := range Nodes {
		cut := how != joined || l.how[other] != joined
		l.between[n][other].Blackhole(cut, cut)
		l.between[other][n].Blackhole(cut, cut)
	}
}

// CutOff cuts node n off from the other nodes and from clients, as a network
// does: what is sent is lost, and nobody is told. Connections stay.
func (c *Cluster) CutOff(n int) error { return c.cut(n, cutOff) }

// Part cuts node n off from the other nodes only: clients reach it.
func (c *Cluster) Part(n int) error { return c.cut(n, parted) }

// Join ends CutOff and Part: what was lost stays so, its connections are reset.
// That the nodes see each other up takes longer, see Settled.
func (c *Cluster) Join(n int) error { return c.cut(n, joined) }

func (c *Cluster) cut(n, how int) error {
	return c.owned(n, func(*node) error {
		if c.links == nil {
			return errWhole
		}
		c.links.set(n, how)
		return nil
	})
}

// Between is the proxy of what one node of a Cuttable cluster sends another one;
// answers go the other way, between that one and this.
func (c *Cluster) Between(from, to int) *Proxy { return c.links.between[from][to] }

// Clients is the proxy by which clients reach node n of a Cuttable cluster.
func (c *Cluster) Clients(n int) *Proxy { return c.links.clients[n] }
