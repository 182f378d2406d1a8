package servers

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// StartEtcd starts an etcd of one member. Settings are flags without their dashes; with
// cert-file and key-file it speaks TLS, and is asked with the same certificate.
func StartEtcd(ctx context.Context, opts *Options) (*Server, error) {
	if opts != nil && opts.Faketime {
		return nil, fmt.Errorf("libfaketime has no power over Go's etcd: %w", errors.ErrUnsupported)
	}
	s, err := prepareEtcd(opts)
	if err != nil {
		return nil, err
	}
	peers, err := freePort()
	if err != nil {
		return nil, errors.Join(err, s.clear())
	}
	peer := fmt.Sprintf("http://127.0.0.1:%d", peers)
	s.etcdArgs(opts, "name=one", "listen-peer-urls="+peer, "initial-advertise-peer-urls="+peer, "initial-cluster=one="+peer)
	return s.open(ctx)
}

func prepareEtcd(opts *Options) (*Server, error) {
	etcd := find("etcd")
	if !supported || etcd == "" {
		return nil, missing("etcd", "etcd-server")
	}
	s, _, err := prepare("etcd", opts, nil)
	if err != nil {
		return nil, err
	}
	s.argv = []string{etcd}
	s.URL = "http://" + s.addr()
	s.quit = syscall.SIGTERM
	client := http.DefaultClient
	if cert := setting(opts, "cert-file"); cert != "" {
		s.URL = "https://" + s.addr()
		pair, err := tls.LoadX509KeyPair(cert, setting(opts, "key-file"))
		if err != nil {
			return nil, errors.Join(err, s.clear())
		}
		client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}}}}
	}
	s.ask = func(ctx context.Context) (string, error) { return s.askEtcd(ctx, client) }
	return s, nil
}

// setting is what the last line of the settings for a key says.
func setting(opts *Options, key string) (value string) {
	for _, line := range settings(opts) {
		if k, v, _ := strings.Cut(line, "="); k == key {
			value = v
		}
	}
	return value
}

func (s *Server) etcdArgs(opts *Options, lines ...string) {
	for _, line := range settings(opts, append(lines, "data-dir="+s.data(), "listen-client-urls="+s.URL, "advertise-client-urls="+s.URL)...) {
		s.argv = append(s.argv, "--"+line)
	}
}

// An EtcdCluster is an etcd of three members, numbered from 0, or one that was
// pointed at.
type EtcdCluster struct {
	Name string // as it says itself: "etcd 3.4.23"
	URL  string // etcd://HOST:PORT,...
	Own  bool   // if not, it was pointed at: only Name, URL and Endpoints may be used

	members [Nodes]*Server
	told    [Nodes]place // where the members say that they are
	links   *links       // if they can be cut off
	ids     [Nodes]string
}

// StartEtcdCluster starts one. Settings are flags without their dashes.
func StartEtcdCluster(ctx context.Context, opts *ClusterOptions) (c *EtcdCluster, err error) {
	if opts == nil {
		opts = &ClusterOptions{}
	}
	c = &EtcdCluster{Own: true}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
			c = nil
		}
	}()
	settings := &Options{Settings: opts.Settings}
	var are [Nodes]place
	var all []string
	for n := range Nodes {
		if c.members[n], err = prepareEtcd(settings); err != nil {
			return c, err
		}
		ports := make([]int, 3)
		for i := range ports {
			if ports[i], err = freePort(); err != nil {
				return c, err
			}
		}
		at := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
		are[n] = place{c.members[n].addr(), at(ports[0])}
		if c.told[n] = are[n]; opts.Cuttable {
			c.told[n] = place{at(ports[1]), at(ports[2])}
		}
		all = append(all, fmt.Sprintf("m%d=http://%s", n, c.told[n].nodes))
	}
	if opts.Cuttable {
		if c.links, err = newLinks(c.told, are, c.caller); err != nil {
			return c, err
		}
	}
	errs := make(chan error, Nodes)
	for n, s := range c.members { // at once: one alone has no leader
		s.etcdArgs(settings, fmt.Sprintf("name=m%d", n), "listen-peer-urls=http://"+are[n].nodes,
			"initial-advertise-peer-urls=http://"+c.told[n].nodes, "initial-cluster="+strings.Join(all, ","))
		go func() {
			_, err := s.open(ctx)
			errs <- err
		}()
	}
	for range c.members {
		err = errors.Join(err, <-errs)
	}
	if err == nil {
		err = c.learn(ctx)
	}
	c.Name, c.URL = c.members[0].Name, "etcd://"+strings.Join(c.Endpoints(), ",")
	return c, err
}

// caller reads the head of the first request of a connection between members: a request
// that carries the log or votes has its sender's address.
func (c *EtcdCluster) caller(r io.Reader) (head []byte, from int, err error) {
	for b := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); {
		if _, err := r.Read(b); err != nil || len(head) > 1<<16 {
			return head, anyone, cmp.Or(err, io.ErrShortBuffer)
		}
		head = append(head, b[0])
	}
	req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
	if err != nil {
		return head, anyone, err
	}
	urls := req.Header.Get("X-PeerURLs")
	from = slices.IndexFunc(c.told[:], func(p place) bool { return urls == "http://"+p.nodes })
	return head, from, nil
}

// Endpoints are where clients connect.
func (c *EtcdCluster) Endpoints() (all []string) {
	if !c.Own {
		return strings.Split(strings.TrimPrefix(c.URL, "etcd://"), ",")
	}
	for _, p := range c.told {
		all = append(all, p.clients)
	}
	return all
}

// Stop ends all members, by force, and removes their directories.
func (c *EtcdCluster) Stop() (err error) {
	for _, s := range c.members {
		if s == nil {
			continue
		}
		if s.main == nil {
			err = errors.Join(err, s.clear())
			continue
		}
		err = errors.Join(err, s.Stop())
	}
	if c.links != nil {
		c.links.close()
	}
	return err
}

// Kill, Freeze, Thaw and Restart do to member n what they do to a Server.
func (c *EtcdCluster) Kill(n int) error   { return c.member(n, (*Server).Kill) }
func (c *EtcdCluster) Freeze(n int) error { return c.member(n, (*Server).Freeze) }
func (c *EtcdCluster) Thaw(n int) error   { return c.member(n, (*Server).Thaw) }

func (c *EtcdCluster) Restart(ctx context.Context, n int) error {
	return c.member(n, func(s *Server) error { return s.Restart(ctx) })
}

func (c *EtcdCluster) member(n int, f func(*Server) error) error {
	if !c.Own {
		return errNotOwn
	}
	return f(c.members[n])
}

// CutOff, Part and Join do to member n what they do to a node of a Cluster.
func (c *EtcdCluster) CutOff(n int) error { return c.cut(n, cutOff) }
func (c *EtcdCluster) Part(n int) error   { return c.cut(n, parted) }
func (c *EtcdCluster) Join(n int) error   { return c.cut(n, joined) }

func (c *EtcdCluster) cut(n, how int) error {
	if c.links == nil {
		return errWhole
	}
	c.links.set(n, how)
	return nil
}

// Clients is the proxy through which clients reach member n of a Cuttable cluster.
func (c *EtcdCluster) Clients(n int) *Proxy { return c.links.clients[n] }

// Settled returns when every member knows the same leader and answers by way of it.
func (c *EtcdCluster) Settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		_, err := c.Leader(ctx)
		for n := 0; n < Nodes && err == nil; n++ {
			_, err = c.post(ctx, n, "kv/range", map[string]string{"key": "AA=="})
		}
		if err == nil {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the members do not work together: %w", err)
		}
	}
}

// Leader is the member that all take for the leader.
func (c *EtcdCluster) Leader(ctx context.Context) (leader int, err error) {
	for n := range Nodes {
		m, ok := c.leads(ctx, n)
		if !ok || n > 0 && m != leader {
			return -1, fmt.Errorf("member %d knows no leader, or another one", n)
		}
		leader = m
	}
	return leader, nil
}

// leads is the member that one takes for the leader.
func (c *EtcdCluster) leads(ctx context.Context, n int) (leader int, ok bool) {
	said, err := c.post(ctx, n, "maintenance/status", map[string]string{})
	var status struct{ Leader string }
	if err == nil {
		err = json.Unmarshal(said, &status)
	}
	if err != nil {
		return -1, false
	}
	for m := range Nodes {
		if c.ids[m] == status.Leader {
			return m, true
		}
	}
	return -1, false
}

// learn notes the ids of the members, by which they call each other.
func (c *EtcdCluster) learn(ctx context.Context) error {
	for n := range Nodes {
		said, err := c.post(ctx, n, "maintenance/status", map[string]string{})
		var status struct {
			Header struct {
				ID string `json:"member_id"`
			}
		}
		if err == nil {
			err = json.Unmarshal(said, &status)
		}
		if err != nil {
			return err
		}
		c.ids[n] = status.Header.ID
	}
	return nil
}

// Compact forgets what was before the newest revision, and Defragment makes member n
// write its data anew.
func (c *EtcdCluster) Compact(ctx context.Context, n int) error {
	said, err := c.post(ctx, n, "kv/range", map[string]string{"key": "AA=="})
	var at struct{ Header struct{ Revision string } }
	if err == nil {
		err = json.Unmarshal(said, &at)
	}
	if err == nil {
		_, err = c.post(ctx, n, "kv/compaction", map[string]string{"revision": at.Header.Revision})
		if err != nil && strings.Contains(err.Error(), "has been compacted") {
			return nil // nothing was written since
		}
	}
	return err
}

func (c *EtcdCluster) Defragment(ctx context.Context, n int) error {
	_, err := c.post(ctx, n, "maintenance/defragment", map[string]string{})
	return err
}

// post asks member n itself, whether it is cut off or not.
func (c *EtcdCluster) post(ctx context.Context, n int, path string, args map[string]string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	body, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, "POST", c.members[n].URL+"/v3/"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, said)
	}
	return said, err
}

// Database returns the URL of a prefix that nobody uses.
func (c *EtcdCluster) Database(testing.TB) string { return c.URL + "?prefix=test/" + rand.Text() + "/" }

// A member that gets no processor for a second keeps its role: its peers wait for five. No test
// stops a member of this cluster.
var sharedEtcdCluster = sync.OnceValues(func() (*EtcdCluster, error) {
	return StartEtcdCluster(context.Background(), &ClusterOptions{Settings: []string{"heartbeat-interval=500", "election-timeout=5000"}})
})

// EtcdThree is an etcd of three members for a test. If opts is nil, all tests of the
// process share one, or use that at HOLDFAST_TEST_ETCD, a URL, if it is set; else the test
// has one of its own, which ends with the test. It is skipped if etcd is not installed.
func EtcdThree(t testing.TB, opts *ClusterOptions) *EtcdCluster {
	t.Helper()
	if target := os.Getenv("HOLDFAST_TEST_ETCD"); target != "" && opts == nil {
		return &EtcdCluster{URL: target, Name: "etcd"}
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
			for n, s := range c.members {
				if t.Failed() {
					t.Logf("member %d said:\n%s", n, s.Log())
				}
			}
			if err := c.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	return c
}

func (s *Server) askEtcd(ctx context.Context, client *http.Client) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var health struct{ Health string }
	var version struct{ Etcdserver string }
	for path, into := range map[string]any{"/health": &health, "/version": &version} {
		req, err := http.NewRequestWithContext(ctx, "GET", s.URL+path, nil)
		if err != nil {
			return "", err
		}
		resp, err := client.Do(req)
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
