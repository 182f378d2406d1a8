package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/internal/servers"
	"github.com/redis/go-redis/v9"
)

// A server is a running store.
type server struct {
	version string
	// requests is how many statements or other requests it has taken from the
	// systems measured. nil: the store has no server that could count.
	requests func(ctx context.Context) (float64, error)
	// connections is how many it has.
	connections func(ctx context.Context) (float64, error)
	stops       []func()
}

func (s *server) stop() {
	for i := range s.stops {
		s.stops[len(s.stops)-1-i]()
	}
}

func (s *server) atEnd(f func()) { s.stops = append(s.stops, f) }

// starters start the stores, in the order in which they are measured.
var starters = []struct {
	store string
	start func(b *bench) (*server, error)
}{
	{"memory", func(*bench) (*server, error) { return &server{}, nil }},
	{"sqlite", func(*bench) (*server, error) { return &server{version: "SQLite"}, nil }},
	{"postgres", startPostgres},
	{"mysql", startMySQL},
	{"redis", startRedis},
	{"etcd", startEtcd},
}

// stopped adds the end of a server of package servers.
func (s *server) stopped(b *bench, of *servers.Server) {
	s.atEnd(func() {
		if err := of.Stop(); err != nil {
			b.say("stop %s: %v", of.Name, err)
		}
	})
}

// child starts a server program in a directory of its own that ends with this
// process, however that ends, and waits until it answers.
func (b *bench) child(ctx context.Context, dir string, answers func(ctx context.Context) error, argv ...string) (stop func(), err error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", argv[0], servers.ErrMissing)
	}
	log, err := os.Create(dir + ".log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	const keeper = `trap '' INT; "$@" & read -r _; kill -9 $!; wait`
	cmd := exec.Command("/bin/sh", append([]string{"-c", keeper, "sh", path}, argv[1:]...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	life, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() { life.Close(); cmd.Wait() }
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		err := answers(ctx)
		cancel()
		if err == nil {
			return stop, nil
		}
		if time.Now().After(deadline) || b.ctx.Err() != nil {
			stop()
			said, _ := os.ReadFile(log.Name())
			return nil, fmt.Errorf("%s does not answer: %w\n%s", argv[0], err, said)
		}
	}
}

// freeAddr is a host and port that nobody uses.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func (b *bench) newDir(name string) (string, error) {
	dir := b.path(name)
	return dir, os.Mkdir(dir, 0o700)
}

// startRedis starts a redis that has every write on disk before it answers,
// which is not its default.
func startRedis(b *bench) (*server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	dir, err := b.newDir("redis")
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	host, port, _ := net.SplitHostPort(addr)
	stop, err := b.child(b.ctx, dir, func(ctx context.Context) error { return client.Ping(ctx).Err() },
		"redis-server", "--bind", host, "--port", port, "--dir", dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--maxclients", "4000")
	if err != nil {
		return nil, err
	}
	s := &server{}
	s.atEnd(stop)
	s.atEnd(func() { client.Close() })
	info := func(ctx context.Context, section, field string) (string, error) {
		text, err := client.Info(ctx, section).Result()
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == field {
				return value, nil
			}
		}
		return "", fmt.Errorf("redis does not tell %s", field)
	}
	number := func(section, field string) func(ctx context.Context) (float64, error) {
		asked := 0.0
		return func(ctx context.Context) (float64, error) {
			text, err := info(ctx, section, field)
			if err != nil {
				return 0, err
			}
			asked++ // our own question
			x, err := strconv.ParseFloat(text, 64)
			return x - asked, err
		}
	}
	version, err := info(b.ctx, "server", "redis_version")
	if err != nil {
		s.stop()
		return nil, err
	}
	s.version = "Redis " + version
	// Each read is one request, since nobody here sends several at once.
	s.requests = number("stats", "total_reads_processed")
	s.connections = func(ctx context.Context) (float64, error) {
		text, err := info(ctx, "clients", "connected_clients")
		if err != nil {
			return 0, err
		}
		return strconv.ParseFloat(text, 64)
	}
	b.site.Redis = addr
	return s, nil
}

// startEtcd starts a cluster of one member.
func startEtcd(b *bench) (*server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	peer, err := freeAddr()
	if err != nil {
		return nil, err
	}
	dir, err := b.newDir("etcd")
	if err != nil {
		return nil, err
	}
	page := func(ctx context.Context, path string) (string, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
		if err != nil {
			return "", err
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK {
			err = errors.Join(err, errors.New(resp.Status))
		}
		return string(text), err
	}
	stop, err := b.child(b.ctx, dir, func(ctx context.Context) error { _, err := page(ctx, "/health"); return err },
		"etcd", "--name", "bench", "--data-dir", filepath.Join(dir, "data"), "--log-level", "error",
		"--listen-client-urls", "http://"+addr, "--advertise-client-urls", "http://"+addr,
		"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer,
		"--initial-cluster", "bench=http://"+peer)
	if err != nil {
		return nil, err
	}
	s := &server{version: "etcd"}
	s.atEnd(stop)
	if text, err := page(b.ctx, "/version"); err == nil {
		if _, rest, ok := strings.Cut(text, `"etcdserver":"`); ok {
			v, _, _ := strings.Cut(rest, `"`)
			s.version = "etcd " + v
		}
	}
	// sum adds up a metric over its labels.
	sum := func(metric string) func(ctx context.Context) (float64, error) {
		return func(ctx context.Context) (total float64, err error) {
			text, err := page(ctx, "/metrics")
			if err != nil {
				return 0, err
			}
			for line := range strings.Lines(text) {
				if f := strings.Fields(line); len(f) == 2 && (f[0] == metric || strings.HasPrefix(f[0], metric+"{")) {
					x, err := strconv.ParseFloat(f[1], 64)
					if err != nil {
						return 0, err
					}
					total += x
				}
			}
			return total, nil
		}
	}
	s.requests = sum("grpc_server_msg_received_total")
	b.site.Etcd = addr
	return s, nil
}
