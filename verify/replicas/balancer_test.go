//go:build linux

package replicas

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A balancer forwards each connection to the next of its servers. One that refuses is passed over;
// one that is stopped is not noticed.
type balancer struct {
	ln      net.Listener
	servers []string
	next    atomic.Int64
	wg      sync.WaitGroup
}

func newBalancer(t *testing.T, servers ...string) *balancer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{ln: ln, servers: servers}
	b.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b.wg.Go(func() { b.forward(c) })
		}
	})
	t.Cleanup(func() { ln.Close(); b.wg.Wait() })
	return b
}

func (b *balancer) forward(client net.Conn) {
	defer client.Close()
	n := int(b.next.Add(1))
	for i := range b.servers {
		server, err := net.DialTimeout("tcp", b.servers[(n+i)%len(b.servers)], time.Second)
		if err != nil {
			continue
		}
		defer server.Close()
		done := make(chan struct{})
		go func() { defer close(done); io.Copy(server, client); server.(*net.TCPConn).CloseWrite() }()
		io.Copy(client, server)
		client.Close()
		<-done
		return
	}
}
