//go:build linux

package replicas

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A balancer forwards each request to the next of its servers. One that refuses is passed over; one
// that is stopped is not noticed. Some requests it sends once more, up to twice a TTL later, as a
// proxy does that was cut off.
type balancer struct {
	url     string
	servers []string
	ttl     time.Duration
	next    atomic.Int64
	doubled atomic.Int64
	late    sync.WaitGroup
	proxy   httputil.ReverseProxy
}

func newBalancer(t *testing.T, ttl time.Duration, servers []string) *balancer {
	t.Helper()
	b := &balancer{servers: servers, ttl: ttl}
	b.proxy = httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "replicas"})
			r.Out.Host = r.In.Host
		},
		Transport:     &http.Transport{DisableKeepAlives: true, DialContext: b.dial},
		FlushInterval: -1,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	front := httptest.NewUnstartedServer(b)
	front.Config.ErrorLog = b.proxy.ErrorLog
	front.Start()
	b.url = front.URL
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		b.late.Wait()
	})
	return b
}

func (b *balancer) dial(ctx context.Context, _, _ string) (c net.Conn, err error) {
	n := int(b.next.Add(1))
	d := net.Dialer{Timeout: time.Second}
	for i := range b.servers {
		if c, err = d.DialContext(ctx, "tcp", b.servers[(n+i)%len(b.servers)]); err == nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("no server: %w", err)
}

func (b *balancer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if rand.IntN(8) == 0 {
		b.doubled.Add(1)
		again := r.Clone(context.WithoutCancel(r.Context()))
		b.late.Go(func() {
			time.Sleep(time.Duration(rand.Int64N(int64(2 * b.ttl))))
			ctx, cancel := context.WithTimeout(again.Context(), b.ttl/4)
			defer cancel()
			again = again.WithContext(ctx)
			again.URL = &url.URL{Scheme: "http", Host: "replicas", Path: r.URL.Path}
			again.RequestURI, again.Body = "", io.NopCloser(bytes.NewReader(body))
			if resp, err := b.proxy.Transport.RoundTrip(again); err == nil {
				resp.Body.Close()
			}
		})
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	b.proxy.ServeHTTP(w, r)
}
