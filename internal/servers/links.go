package servers

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// errWhole is the error of cutting a cluster without links.
var errWhole = errors.New("this cluster was started without Cuttable")

// How a node is cut off.
const (
	joined = iota
	parted // from the other nodes
	cutOff // from clients too
)

// links are the proxies through which other nodes and clients reach the nodes of a
// cluster, each at the address that the node announces. The nodes listen elsewhere.
type links struct {
	between [Nodes][Nodes]*Proxy // of connections that one makes to another
	clients [Nodes]*Proxy
	doors   []net.Listener
	wg      sync.WaitGroup

	mu  sync.Mutex
	how [Nodes]int
}

// newLinks makes links from where the nodes say that they are to where they are.
// caller reads the beginning of a connection between nodes, which says which node
// made it; anyone: perhaps none of them.
func newLinks(told, are [Nodes]place, caller func(io.Reader) (head []byte, from int, err error)) (*links, error) {
	l := &links{}
	for to := range Nodes {
		ln, err := net.Listen("tcp", told[to].clients)
		if err != nil {
			l.close()
			return nil, err
		}
		l.clients[to] = newProxy(ln, are[to].clients)
		door, err := net.Listen("tcp", told[to].nodes)
		if err != nil {
			l.close()
			return nil, err
		}
		l.doors = append(l.doors, door)
		var calls [Nodes]handed // those of anyone are among the node's own
		for from := range Nodes {
			calls[from] = handed{make(chan net.Conn), make(chan struct{}), door.Addr(), new(sync.Once)}
			l.between[from][to] = newProxy(calls[from], are[to].nodes)
		}
		l.wg.Go(func() { l.sort(door, to, calls, caller) })
	}
	return l, nil
}

// A place is the addresses of a node.
type place struct{ clients, nodes string }

const anyone = -1

// sort gives each connection that comes in at a node's door to the proxy for
// the node that made it.
func (l *links) sort(door net.Listener, to int, calls [Nodes]handed, caller func(io.Reader) ([]byte, int, error)) {
	for {
		c, err := door.Accept()
		if err != nil {
			return
		}
		l.wg.Go(func() {
			c.SetReadDeadline(time.Now().Add(10 * time.Second))
			head, from, err := caller(c)
			c.SetReadDeadline(time.Time{})
			if from == anyone {
				from = to
			}
			if err != nil || !calls[from].hand(&begun{c.(*net.TCPConn), head}) {
				c.Close()
			}
		})
	}
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

// A handed is a listener that accepts the connections handed to it.
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

// set cuts node n off, or joins it again.
func (l *links) set(n, how int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.how[n] = how
	l.clients[n].Blackhole(how == cutOff, how == cutOff)
	for other := range Nodes {
		cut := how != joined || l.how[other] != joined // other may be n
		l.between[n][other].Blackhole(cut, cut)
		l.between[other][n].Blackhole(cut, cut)
	}
}
