package servers

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	spannerInstance = "projects/test/instances/test"
	emulatorHost    = "SPANNER_EMULATOR_HOST" // clients read the address from it
)

// emulator finds the official emulator of Spanner, and the gateway that translates
// HTTP requests for it.
func emulator() (main, gateway string) {
	roots := []string{"/usr/lib/google-cloud-sdk", "/usr/local/google-cloud-sdk", "/opt/google-cloud-sdk", os.Getenv("HOME") + "/google-cloud-sdk"}
	if gcloud := find("gcloud"); gcloud != "" {
		roots = append(roots, filepath.Dir(filepath.Dir(gcloud)))
	}
	look := func() bool {
		for _, root := range roots {
			dir := filepath.Join(root, "bin", "cloud_spanner_emulator")
			main, gateway = filepath.Join(dir, "emulator_main"), filepath.Join(dir, "gateway_main")
			if exists(main) && exists(gateway) {
				return true
			}
		}
		return false
	}
	if look() {
		return main, gateway
	}
	said, err := exec.Command("gcloud", "info", "--format=value(installation.sdk_root)").Output()
	if roots = []string{strings.TrimSpace(string(said))}; err == nil && look() {
		return main, gateway
	}
	return "", ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// StartSpanner starts an emulator of Spanner, which keeps everything in memory, with an
// empty database called test. Clients reach it by the environment variable
// SPANNER_EMULATOR_HOST, which has to be set to its Addr.
func StartSpanner(ctx context.Context, opts *Options) (*Server, error) {
	if opts != nil && opts.Faketime {
		return nil, fmt.Errorf("the emulator's clock: %w", errors.ErrUnsupported)
	}
	main, gateway := emulator()
	if !supported || main == "" {
		return nil, fmt.Errorf("the Spanner emulator is %w: gcloud components install cloud-spanner-emulator", ErrMissing)
	}
	s, _, err := prepare("spanner", opts, nil)
	if err != nil {
		return nil, err
	}
	s.argv = []string{main, "--host_port=" + s.addr(), "--override_max_databases_per_instance=10000"}
	for _, line := range settings(opts) {
		s.argv = append(s.argv, "--"+line)
	}
	s.URL = "spanner://" + spannerInstance + "/databases/test"
	s.database = s.spannerDatabase
	s.quit = syscall.SIGTERM
	s.ask = func(ctx context.Context) (string, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", s.addr())
		if err != nil {
			return "", err
		}
		c.Close()
		return "Spanner emulator", s.createSpanner(ctx, gateway, "test")
	}
	return s.open(ctx)
}

// createSpanner makes a database by way of the gateway. The gateway would start an
// emulator itself, which would outlive a gateway that is killed; so it gets the option to
// start something else.
func (s *Server) createSpanner(ctx context.Context, gateway, name string) error {
	ctx, cancel := context.WithTimeout(ctx, patience/2)
	defer cancel()
	dir, idle := s.file("gateway-"+name), s.file("idle-"+name)
	err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(idle, []byte("#!/bin/sh\nexec sleep 60\n"), 0o700))
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	cmd := exec.Command(gateway, "--hostname=127.0.0.1", fmt.Sprintf("--grpc_port=%d", s.Port), fmt.Sprintf("--http_port=%d", port), "--grpc_binary="+idle)
	var said bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, s.env, &said, &said
	cmd.WaitDelay = time.Second
	if err := start(cmd, nil); err != nil {
		return err
	}
	defer func() {
		signalAll(dir, kill)
		cmd.Wait()
	}()
	for {
		err := postDatabase(ctx, fmt.Sprintf("127.0.0.1:%d", port), name)
		if err == nil || !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			signalAll(dir, kill)
			cmd.Wait()
			return fmt.Errorf("the gateway of the emulator: %w\n%s", err, &said)
		}
	}
}

// postDatabase asks a gateway for a database, if it is not there.
func postDatabase(ctx context.Context, gateway, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	post := func(path string, args map[string]any) error {
		body, err := json.Marshal(args)
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, "POST", "http://"+gateway+"/v1/"+path, bytes.NewReader(body))
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		said, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusConflict {
			err = fmt.Errorf("%s: %s: %s", path, resp.Status, said)
		}
		return err
	}
	err := post("projects/test/instances", map[string]any{"instanceId": "test", "instance": map[string]any{
		"config": "projects/test/instanceConfigs/emulator-config", "displayName": "test", "nodeCount": 1}})
	if err == nil {
		err = post(spannerInstance+"/databases", map[string]any{"createStatement": "CREATE DATABASE `" + name + "`"})
	}
	return err
}

// Addr is where a server listens.
func (s *Server) Addr() string { return s.addr() }

var sharedSpanner = sync.OnceValues(func() (*Server, error) {
	if host := os.Getenv(emulatorHost); host != "" {
		name, _, _ := strings.Cut(host, ":")
		s := &Server{Name: "Spanner emulator", gateway: name + ":9020", URL: "spanner://" + spannerInstance + "/databases/test"}
		s.database = s.spannerDatabase
		if err := postDatabase(context.Background(), s.gateway, "test"); err != nil {
			return nil, fmt.Errorf("%s is %s, but there is no gateway at %s to make databases with: %w", emulatorHost, host, s.gateway, err)
		}
		return s, nil
	}
	s, err := StartSpanner(context.Background(), nil)
	if err == nil {
		err = os.Setenv(emulatorHost, s.addr())
	}
	return s, err
})

// Spanner is an emulator of Spanner for a test. If opts is nil, all tests of the process
// share one, or use that at SPANNER_EMULATOR_HOST, if it is set and its gateway is at port
// 9020, as with gcloud emulators spanner start; else the test has one of its own, which
// ends with the test. From then on SPANNER_EMULATOR_HOST is set. The test is skipped if
// there is no emulator.
func Spanner(t testing.TB, opts *Options) *Server {
	t.Helper()
	s := forTest(t, "", sharedSpanner, StartSpanner, opts)
	if opts != nil {
		t.Setenv(emulatorHost, s.addr())
	}
	return s
}

// spannerDatabase is Database.
func (s *Server) spannerDatabase(t testing.TB) string {
	t.Helper()
	name := "t" + strings.ToLower(rand.Text()[:20])
	var err error
	if s.Own {
		_, gateway := emulator()
		err = s.createSpanner(t.Context(), gateway, name)
	} else {
		err = postDatabase(t.Context(), s.gateway, name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return "spanner://" + spannerInstance + "/databases/" + name
}
