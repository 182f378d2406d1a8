package servers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Nodes is how many nodes a Cluster has.
const Nodes = 3

// A Cluster is three nodes of Cassandra on 127.0.0.1, 127.0.0.2 and 127.0.0.3,
// each with 512 MiB of heap, or a cluster that was pointed at. Its nodes are
// numbered from 0.
//
// A node has written to disk what it has acknowledged, unless the Settings say
// otherwise.
type Cluster struct {
	Name string // as it says itself: "Cassandra 5.0.9"
	URL  string // cassandra://127.0.0.1,127.0.0.2,127.0.0.3:PORT
	Port int    // for clients, the same for all nodes
	Dir  string // has the nodes' directories node0, node1 and node2, each with its output in log
	Own  bool   // if not, it was pointed at: only Name, URL, Port, Settled and Database may be used

	hosts   []string
	nodes   [Nodes]node
	links   *links     // if the nodes can be cut off
	mu      sync.Mutex // guards stopped
	stopped bool
}

// A node is one process of a cluster.
type node struct {
	dir  string
	argv []string

	mu   sync.Mutex // held while it starts or ends
	main *os.Process
	done chan struct{} // closed when main has ended
}

// ClusterOptions say how a cluster is started.
type ClusterOptions struct {
	Settings []string // lines of cassandra.yaml, "write_request_timeout: 500ms"; the last one counts
	Java     []string // options of Java; the last one counts

	// Cuttable makes CutOff, Part, Between and Clients work: all that the nodes send
	// and receive goes through this process.
	Cuttable bool
}

// clusterPatience is how long a node may take to start or to end: on a busy
// machine a JVM that starts is slow.
const clusterPatience = 3 * time.Minute

// StartCassandra starts a cluster. It returns when each node sees the others.
func StartCassandra(ctx context.Context, opts *ClusterOptions) (*Cluster, error) {
	if opts == nil {
		opts = &ClusterOptions{}
	}
	java, lib, classes, err := PrepareCassandra(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := tempDir("cassandra")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir, Own: true}
	if c.Dir, err = filepath.EvalSymlinks(dir); err == nil {
		err = c.prepare(java, lib, classes, opts)
	}
	if err == nil {
		err = c.open(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// PrepareCassandra puts what a cluster needs into the user's cache: jars, and the
// archive of their classes. The first time that takes a minute or two.
func PrepareCassandra(ctx context.Context) (java, lib, classes string, err error) {
	java, version, err := Java17()
	if err == nil {
		lib, err = Jars(ctx, CassandraJars)
	}
	if err == nil {
		classes, err = archive(ctx, java, version, lib)
	}
	return java, lib, classes, err
}

// prepare writes the configuration of the nodes, and chooses the ports.
func (c *Cluster) prepare(java, lib, classes string, opts *ClusterOptions) error {
	var bind []string // where the nodes themselves listen
	for n := range Nodes {
		c.hosts = append(c.hosts, fmt.Sprintf("127.0.0.%d", n+1))
		bind = append(bind, fmt.Sprintf("127.0.1.%d", n+1))
	}
	if !opts.Cuttable {
		bind = c.hosts
	}
	storage := 0
	ports := []*int{&c.Port, &storage}
	var jmx [Nodes]int
	for n := range jmx {
		ports = append(ports, &jmx[n])
	}
	if err := freeOn(append(bind, c.hosts...), ports...); err != nil {
		return err
	}
	if opts.Cuttable {
		var err error
		var told, are [Nodes]place
		for n := range Nodes {
			told[n] = place{net.JoinHostPort(c.hosts[n], strconv.Itoa(c.Port)), net.JoinHostPort(c.hosts[n], strconv.Itoa(storage))}
			are[n] = place{net.JoinHostPort(bind[n], strconv.Itoa(c.Port)), net.JoinHostPort(bind[n], strconv.Itoa(storage))}
		}
		if c.links, err = newLinks(told, are, c.caller); err != nil {
			return err
		}
	}
	c.URL = "cassandra://" + strings.Join(c.hosts, ",") + ":" + strconv.Itoa(c.Port)
	options := append([]string{"-XX:SharedArchiveFile=" + classes}, opts.Java...)
	for n := range c.nodes {
		nd := &c.nodes[n]
		nd.dir = filepath.Join(c.Dir, "node"+strconv.Itoa(n))
		nd.argv = cassandraArgv(java, lib, nd.dir, jmx[n], options)
		if err := nd.configure(cassandraYAML(nd.dir, c.hosts, bind[n], n, c.Port, storage, opts.Settings)); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) configure(yaml []byte) error {
	conf := n.file("conf")
	return errors.Join(
		os.MkdirAll(conf, 0o700),
		os.WriteFile(filepath.Join(conf, "cassandra.yaml"), yaml, 0o600),
		os.WriteFile(filepath.Join(conf, "logback.xml"), []byte(logback), 0o600))
}

// archive is the path of the archive of Cassandra's classes for this Java, which
// halves the cost of a start. The first time, one node is started and ended to
// write it.
func archive(ctx context.Context, java, version, lib string) (path string, err error) {
	path = filepath.Join(lib, "java-"+version+".jsa")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	unlock, err := lockPath(lib + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	dir, err := tempDir("cassandra")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	hosts := []string{"127.0.0.1"}
	var native, storage, jmx int
	if err := freeOn(hosts, &native, &storage, &jmx); err != nil {
		return "", err
	}
	made := filepath.Join(dir, "classes.jsa")
	n := &node{dir: dir, argv: cassandraArgv(java, lib, dir, jmx, []string{"-XX:ArchiveClassesAtExit=" + made})}
	if err := n.configure(cassandraYAML(dir, hosts, hosts[0], 0, native, storage, nil)); err != nil {
		return "", err
	}
	if err := n.start(ctx); err != nil {
		return "", err
	}
	n.end(ctx)
	if err := n.kill(); err != nil {
		return "", err
	}
	// The cache may be on another file system.
	b, err := os.ReadFile(made)
	if err != nil {
		return "", fmt.Errorf("no archive of classes was written by Java: %w\n%s", err, n.log())
	}
	if err := os.WriteFile(path+".part", b, 0o644); err != nil {
		return "", err
	}
	return path, os.Rename(path+".part", path)
}

// open starts all nodes for the first time.
func (c *Cluster) open(ctx context.Context) error {
	errs := make(chan error, Nodes)
	for n := range c.nodes {
		go func() { errs <- c.nodes[n].start(ctx) }()
	}
	var err error
	for range c.nodes {
		err = errors.Join(err, <-errs)
	}
	if err == nil {
		err = c.Settled(ctx)
	}
	if err == nil {
		c.Name, err = clusterName(ctx, c.addr(0))
	}
	return err
}

func clusterName(ctx context.Context, addr string) (string, error) {
	version, err := cql(ctx, addr, "SELECT release_version FROM system.local", one)
	if err != nil {
		return "", err
	}
	return "Cassandra " + strings.Join(version, ""), nil
}

func (c *Cluster) addr(n int) string { return net.JoinHostPort(c.hosts[n], strconv.Itoa(c.Port)) }

// Settled returns when every node sees every other one up and has had an answer
// from it.
func (c *Cluster) Settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clusterPatience)
	defer cancel()
	for n := range c.hosts {
		for {
			// A node refuses this at once if it sees a replica of the row down, and all
			// nodes are replicas of it.
			_, err := cql(ctx, c.addr(n), "SELECT status FROM system_distributed.view_build_status WHERE keyspace_name = '' AND view_name = ''", all)
			if err == nil {
				break
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("node %d does not see all others up: %w", n, err)
			}
		}
	}
	return nil
}

// start starts the node and returns when it serves clients.
func (n *node) start(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.startLocked(ctx)
}

func (n *node) startLocked(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clusterPatience)
	defer cancel()
	log, err := os.OpenFile(n.file("log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	old, err := log.Seek(0, 2)
	if err != nil {
		return err
	}
	cmd := exec.Command(n.argv[0], n.argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = n.dir, log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=/nonexistent"}
	if err := start(cmd, nil); err != nil {
		return err
	}
	done := make(chan struct{})
	n.main, n.done = cmd.Process, done
	go func() {
		cmd.Wait()
		close(done)
	}()
	for {
		said, _ := os.ReadFile(n.file("log"))
		if int64(len(said)) > old && strings.Contains(string(said[old:]), "Startup complete") {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("%s: %v\n%s", n.argv[0], cmd.ProcessState, n.log())
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s does not start: %w\n%s", n.argv[0], ctx.Err(), n.log()), n.kill())
		}
	}
}

func (n *node) file(name string) string { return filepath.Join(n.dir, name) }

func (n *node) log() string {
	b, _ := os.ReadFile(n.file("log"))
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// end asks the node to end, and returns when it has or time is up.
func (n *node) end(ctx context.Context) {
	n.main.Signal(syscall.SIGTERM)
	select {
	case <-n.done:
	case <-ctx.Done():
	case <-time.After(clusterPatience):
	}
}

// kill ends the node and waits until it is gone.
func (n *node) kill() error {
	if n.main == nil {
		return nil
	}
	n.main.Kill()
	if err := signalAll(n.dir, kill); err != nil {
		return err
	}
	<-n.done
	return nil
}

// owned runs f on a node of our own.
func (c *Cluster) owned(n int, f func(*node) error) error {
	if !c.Own {
		return errNotOwn
	}
	nd := &c.nodes[n]
	nd.mu.Lock()
	defer nd.mu.Unlock()
	c.mu.Lock()
	stopped := c.stopped
	c.mu.Unlock()
	if stopped {
		return errors.New("this cluster was stopped for good")
	}
	return f(nd)
}

// Kill sends SIGKILL to node n and waits until it is gone.
func (c *Cluster) Kill(n int) error { return c.owned(n, (*node).kill) }

// Freeze stops node n, as SIGSTOP does: connections stay and nothing answers,
// until Thaw.
func (c *Cluster) Freeze(n int) error {
	return c.owned(n, func(nd *node) error { return signalAll(nd.dir, freeze) })
}

// Thaw lets a frozen node go on.
func (c *Cluster) Thaw(n int) error {
	return c.owned(n, func(nd *node) error { return signalAll(nd.dir, thaw) })
}

// Restart starts node n again over the same data, and returns when it serves
// clients; it takes longer until the others see it up, see Settled. If it runs, it
// is first asked to end.
func (c *Cluster) Restart(ctx context.Context, n int) error {
	return c.owned(n, func(nd *node) error {
		if !isClosed(nd.done) {
			if err := signalAll(nd.dir, thaw); err != nil {
				return err
			}
			nd.end(ctx)
		}
		if err := errors.Join(ctx.Err(), nd.kill()); err != nil {
			return err
		}
		return nd.startLocked(ctx)
	})
}

// caller reads the beginning of a connection between nodes, which has the address
// of the node that made it: after a magic number and flags come its length,
// address and port.
func (c *Cluster) caller(r io.Reader) (head []byte, from int, err error) {
	head = make([]byte, 13)
	if _, err := io.ReadFull(r, head); err != nil {
		return head, anyone, err
	}
	if binary.BigEndian.Uint32(head) == 0xca552dfa && head[8] == 6 {
		if from = slices.Index(c.hosts, net.IP(head[9:13]).String()); from >= 0 {
			return head, from, nil
		}
	}
	return head, anyone, errors.New("not from a node")
}

// CutOff cuts node n off from the other nodes and from clients, as a network
// does: what is sent is lost without an error. Connections stay.
func (c *Cluster) CutOff(n int) error { return c.cut(n, cutOff) }

// Part cuts node n off from the other nodes only: clients reach it.
func (c *Cluster) Part(n int) error { return c.cut(n, parted) }

// Join ends CutOff and Part: what was lost stays lost, and its connections are reset.
// It takes longer until the nodes see each other up, see Settled.
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

// Between is the proxy of what one node of a Cuttable cluster sends to another;
// answers go through Between(to, from).
func (c *Cluster) Between(from, to int) *Proxy { return c.links.between[from][to] }

// Clients is the proxy through which clients reach node n of a Cuttable cluster.
func (c *Cluster) Clients(n int) *Proxy { return c.links.clients[n] }

// Stop ends all nodes, by force, and removes their directory. A second Stop does
// nothing.
func (c *Cluster) Stop() error {
	if !c.Own {
		return nil
	}
	c.mu.Lock()
	stopped := c.stopped
	c.stopped = true
	c.mu.Unlock()
	if stopped {
		return nil
	}
	var err error
	for n := range c.nodes {
		nd := &c.nodes[n]
		nd.mu.Lock()
		err = errors.Join(err, nd.kill())
		nd.mu.Unlock()
	}
	if c.links != nil {
		c.links.close()
	}
	return errors.Join(err, os.RemoveAll(c.Dir))
}

// Log is the end of what each node has written to its log.
func (c *Cluster) Log() string {
	var b strings.Builder
	for n := range c.nodes {
		if c.Own {
			fmt.Fprintf(&b, "node %d:\n%s\n", n, c.nodes[n].log())
		}
	}
	return b.String()
}
