package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// StartEtcd starts an etcd of one member.
func StartEtcd(ctx context.Context, opts *Options) (*Server, error) {
	members, err := prepareEtcd(1, opts)
	if err != nil {
		return nil, err
	}
	return members[0].open(ctx)
}

// prepareEtcd makes members of one cluster, which are not started yet.
func prepareEtcd(n int, opts *Options) (members []*Server, err error) {
	etcd := find("etcd")
	if !supported || etcd == "" {
		return nil, missing("etcd", "etcd-server")
	}
	if opts != nil && opts.Faketime {
		return nil, fmt.Errorf("libfaketime has no power over Go's etcd: %w", errors.ErrUnsupported)
	}
	var peers, all []string
	for i := range n {
		s, _, err := prepare("etcd", opts, nil)
		if err == nil {
			members = append(members, s)
			var port int
			port, err = freePort()
			peers = append(peers, fmt.Sprintf("http://127.0.0.1:%d", port))
			all = append(all, fmt.Sprintf("m%d=%s", i, peers[i]))
		}
		if err != nil {
			for _, s := range members {
				err = errors.Join(err, s.clear())
			}
			return nil, err
		}
	}
	for i, s := range members {
		s.URL = "http://" + s.addr()
		s.argv = []string{etcd}
		for _, line := range settings(opts, fmt.Sprintf("name=m%d", i), "data-dir="+s.data(), "listen-client-urls="+s.URL, "advertise-client-urls="+s.URL,
			"listen-peer-urls="+peers[i], "initial-advertise-peer-urls="+peers[i], "initial-cluster="+strings.Join(all, ",")) {
			s.argv = append(s.argv, "--"+line)
		}
		s.quit = syscall.SIGTERM
		s.ask = s.askEtcd
	}
	return members, nil
}

// An EtcdCluster is the members of an etcd. None is Own if it was pointed at.
type EtcdCluster struct {
	URL     string // etcd://HOST:PORT,...
	Members []*Server
}

// StartEtcdCluster starts an etcd of three members.
func StartEtcdCluster(ctx context.Context, opts *Options) (*EtcdCluster, error) {
	members, err := prepareEtcd(3, opts)
	if err != nil {
		return nil, err
	}
	c := &EtcdCluster{Members: members}
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	var addrs []string
	for i, s := range members { // at once: one alone has no leader
		addrs = append(addrs, s.addr())
		wg.Go(func() { _, errs[i] = s.open(ctx) })
	}
	wg.Wait()
	c.URL = "etcd://" + strings.Join(addrs, ",")
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// Stop ends all members that are ours.
func (c *EtcdCluster) Stop() (err error) {
	for _, s := range c.Members {
		if s.main != nil {
			err = errors.Join(err, s.Stop())
		}
	}
	return err
}

// Endpoints are where clients connect.
func (c *EtcdCluster) Endpoints() []string {
	return strings.Split(strings.TrimPrefix(c.URL, "etcd://"), ",")
}

var sharedEtcdCluster = sync.OnceValues(func() (*EtcdCluster, error) { return StartEtcdCluster(context.Background(), nil) })

// EtcdThree is an etcd of three members for a test: with opts nil one for all tests
// of the process, or that at HOLDFAST_TEST_ETCD, a URL, if it is set; else one of its
// own that ends with the test. The test is skipped if etcd is not installed.
func EtcdThree(t testing.TB, opts *Options) *EtcdCluster {
	t.Helper()
	if target := os.Getenv("HOLDFAST_TEST_ETCD"); target != "" && opts == nil {
		return &EtcdCluster{URL: target}
	}
	var c *EtcdCluster
	var err error
	if opts == nil {
		c, err = sharedEtcdCluster()
	} else {
		c, err = StartEtcdCluster(t.Context(), opts)
	}
	switch {
	case errors.Is(err, ErrMissing):
		t.Skipf("%v, or set HOLDFAST_TEST_ETCD to the URL of one", err)
	case err != nil:
		t.Fatal(err)
	case opts != nil:
		t.Cleanup(func() {
			for i, s := range c.Members {
				if t.Failed() {
					t.Logf("member %d said:\n%s", i, s.Log())
				}
			}
			if err := c.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	return c
}

func (s *Server) askEtcd(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var health struct{ Health string }
	var version struct{ Etcdserver string }
	for path, into := range map[string]any{"/health": &health, "/version": &version} {
		req, err := http.NewRequestWithContext(ctx, "GET", s.URL+path, nil)
		if err != nil {
			return "", err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		err = json.NewDecoder(resp.Body).Decode(into)
		resp.Body.Close()
		if err != nil {
			return "", err
		}
	}
	if health.Health != "true" {
		return "", errors.New("etcd has no leader yet")
	}
	return "etcd " + version.Etcdserver, nil
}
