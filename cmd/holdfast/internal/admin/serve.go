package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/monitor"
	"github.com/holdfast-lock/holdfast/serve"
	"github.com/holdfast-lock/holdfast/serve/access"
	"github.com/holdfast-lock/holdfast/serve/page"
)

const serveHelp = `usage: holdfast serve [flags]
       holdfast serve check [--socket PATH | --url URL]
       holdfast serve token NAME VERBS [PREFIX…]

Serves locks over HTTP to programs in any language, and a page to people. The server
stores nothing itself, so any number of replicas can serve one store. If a replica is
killed, no lock is lost, and those who wait keep their places. Without flags it listens
on a unix socket, for programs of this user, and on 127.0.0.1:7420, for anyone with the
key that it prints.

check asks a running server whether it is ready. token makes a secret for NAME, and
prints it with a line for the tokens file. The line says what NAME may do (take, look,
break, configure, metrics) with the names that begin with PREFIX (* for all).

{flags}

examples:
  holdfast serve
  holdfast --store postgres://app@db/shop serve --listen :7420 --tokens tokens \
      --tls-cert tls.crt --tls-key tls.key
  holdfast serve token ci take deploy/ import/ >> tokens
  curl --unix-socket $XDG_RUNTIME_DIR/holdfast/serve.sock http://localhost/v1/locks

exit status: 0 ended by a signal, or ready; 1 not ready; 64 usage; 69 store
`

type serving struct {
	listen           serve.Listen
	socket, mode     string
	address          string
	tokens, log, url string
	allow, names     []string
	noPage, noAPI    bool
}

const (
	serveAddress = "127.0.0.1:7420"
	servePatient = 25 * time.Second // for requests under way at the end
)

func serveVerb(a *cli.App) *cobra.Command {
	var s serving
	c := &cobra.Command{
		Use: "serve", Short: "Serve locks over HTTP", Long: serveHelp,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usage("serve: unknown word %s; there are serve check and serve token", cli.Quote(args[0]))
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&s.socket, "socket", "", "`PATH` of the unix socket; - for none")
	f.StringVar(&s.mode, "socket-mode", "0600", "`MODE` of the socket: 0600, or 0666 for users of this host whom the tokens file names")
	f.StringVar(&s.address, "listen", "", "listen at `HOST:PORT`, or - for none; beyond loopback this needs TLS and --tokens")
	f.StringVar(&s.tokens, "tokens", "", "`FILE` that says who may do what; read again when it changes")
	f.StringVar(&s.listen.Cert, "tls-cert", "", "`FILE` of the certificate; read again when it changes")
	f.StringVar(&s.listen.Key, "tls-key", "", "`FILE` of its key")
	f.StringVar(&s.listen.ClientCA, "client-ca", "", "`FILE` of the authority that signs the clients' certificates, for lines cert:…")
	f.StringSliceVar(&s.allow, "allow", nil, "accept a `DANGER`: plain-http, for a server behind a proxy that terminates TLS")
	f.BoolVar(&s.noPage, "no-page", false, "serve the API without the page for people")
	f.BoolVar(&s.noAPI, "no-api", false, "serve only metrics, health and the page; with --no-page nothing but metrics and health")
	f.StringArrayVar(&s.names, "metrics-names", nil, "`PREFIX=LABEL`: in /metrics, locks whose names begin with PREFIX have this label; up to 50")
	f.StringVar(&s.log, "log", "text", "log each request in this `FORM`: text, json or none")
	c.RunE = func(c *cobra.Command, _ []string) error { return serveStore(c.Context(), a, &s) }

	check := &cobra.Command{Use: "check", Long: serveHelp, Args: cobra.NoArgs}
	check.Flags().StringVar(&s.socket, "socket", "", "`PATH` of the unix socket")
	check.Flags().StringVar(&s.url, "url", "", "`URL` of the server, as http://127.0.0.1:7420")
	check.RunE = func(c *cobra.Command, _ []string) error { return s.check(c.Context()) }
	token := &cobra.Command{Use: "token NAME VERBS [PREFIX…]", Long: serveHelp}
	token.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) < 2 {
			return cli.Usage("serve token: a name and verbs, as in: holdfast serve token ci take,look deploy/")
		}
		secret, hash := access.NewSecret()
		line, err := access.TokenLine(args[0], hash, args[1], args[2:])
		if err != nil {
			return cli.Usage("serve token: %s", cli.Escape(err.Error()))
		}
		cli.Say("the secret of %s, which is not shown again: %s", cli.Escape(args[0]), secret)
		if _, err := fmt.Println(line); err != nil {
			return cli.CannotWrite(err)
		}
		return nil
	}
	c.AddCommand(check, token)
	return c
}

// settle derives from the flags where to listen.
func (s *serving) settle() (err error) {
	l := &s.listen
	if l.Socket, err = s.socketPath(); err != nil {
		return err
	}
	switch s.mode {
	case "0600", "600":
	case "0666", "666":
		l.Everybody = true
	default:
		return cli.Usage("serve: --socket-mode is 0600 or 0666, not %s", cli.Quote(s.mode))
	}
	switch s.address {
	case "":
		l.Address, l.Other = serveAddress, true
	case "-":
	default:
		if _, _, err := net.SplitHostPort(s.address); err != nil {
			return cli.Usage("serve: --listen is host:port, as %s or :7420", serveAddress)
		}
		l.Address = s.address
	}
	for _, danger := range s.allow {
		if danger != "plain-http" {
			return cli.Usage("serve: --allow knows plain-http, not %s", cli.Quote(danger))
		}
		l.PlainHTTP = true
	}
	if !slices.Contains([]string{"text", "json", "none"}, s.log) {
		return cli.Usage("serve: --log is text, json or none")
	}
	return nil
}

// socketPath returns the path of --socket or, without it, the default; "" for no socket.
func (s *serving) socketPath() (string, error) {
	switch s.socket {
	case "":
	case "-":
		return "", nil
	default:
		return s.socket, nil
	}
	if dir := os.Getenv("RUNTIME_DIRECTORY"); filepath.IsAbs(dir) { // of a systemd unit
		return filepath.Join(dir, "serve.sock"), nil
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "holdfast", "serve.sock"), nil
	}
	if dir := fmt.Sprintf("/run/user/%d", os.Getuid()); isOwnDir(dir) {
		return filepath.Join(dir, "holdfast", "serve.sock"), nil
	}
	file, err := cli.OwnFile()
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(file), "serve.sock"), nil
}

func isOwnDir(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir()
}

func (s *serving) logger() *slog.Logger {
	switch s.log {
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, nil))
	case "none":
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

// serveStore serves until a signal comes.
func serveStore(ctx context.Context, a *cli.App, s *serving) error {
	if err := s.settle(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := s.logger()
	list, err := access.Open(s.tokens, log)
	if err != nil {
		return cli.Usage("serve: %s", cli.Escape(err.Error()))
	}
	link := ""
	if s.tokens == "" && s.listen.Address != "" {
		link = "/#key=" + list.NewKey()
	}
	named, err := metricsNames(s.names)
	if err != nil {
		return err
	}
	measured := monitor.New(&monitor.Options{Lock: named})
	store, err := a.Open(ctx, &holdfast.Options{Logger: log, Trace: measured.Trace(), ReadOnly: s.noAPI && s.noPage,
		Owner: holdfast.Owner{Program: "holdfast serve"}})
	if err != nil {
		return err
	}
	defer store.Close()
	if _, err := store.StoreTTL(ctx); err != nil {
		return store.Unusable(err, "")
	}
	options := &serve.Options{
		Access: list, Logger: log, Monitor: measured, MetricsLock: named, NoAPI: s.noAPI, Redact: func(err error) string { return store.Cause(err) },
		Doctor: func(ctx context.Context) []driver.Finding { return findings(ctx, a, s) },
	}
	if !s.noPage {
		fence := ""
		if k := store.Target.Kind; k.FenceSQL != nil {
			fence = k.FenceSQL(store.Target.Location)
		}
		p := serve.NewPage(store.Client, list, &page.Options{Store: store.Target.String(), Fence: fence, Doctor: options.Doctor, Redact: options.Redact, Logger: log})
		defer p.Close()
		options.Page = p
	}
	handler := serve.New(store.Client, options)
	s.listen.Logger = log
	server, err := serve.NewServer(handler, s.listen)
	if err != nil {
		return cli.Usage("serve: %s", cli.Escape(err.Error()))
	}
	s.announce(store.Target, server, link)
	notify("READY=1")
	go watchdog(ctx, s.client(server.Socket(), server.Address()))
	context.AfterFunc(ctx, func() { notify("STOPPING=1") })
	if err = server.Serve(ctx, servePatient); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return cli.Fail(cli.ExitFault, "serve: %v", err)
	}
	return nil
}

// announce prints the addresses. link is the key that logs in to the page, if there is one.
func (s *serving) announce(t cli.Target, server *serve.Server, link string) {
	cli.Say("serving    %s", t)
	if server.Socket() != "" {
		cli.Say("programs   %s", cli.Escape(server.Socket()))
	}
	if server.Address() != "" {
		scheme, note := "http", ""
		if s.listen.Cert != "" {
			scheme = "https"
		}
		if link != "" {
			note = "   (this link logs in, for this run)"
		}
		what := "page"
		if s.noPage {
			what, link, note = "address", "", ""
		}
		cli.Say("%-10s %s://%s%s%s", what, scheme, server.Address(), link, note)
	}
}

// mostMetricsNames bounds the time series.
const mostMetricsNames = 50

// metricsNames turns PREFIX=LABEL flags into a function that gives a lock its label in the metrics:
// that of the longest prefix of its name, else "other". Without such flags it returns nil.
func metricsNames(list []string) (func(name string) string, error) {
	labels := map[string]string{}
	for _, one := range list {
		prefix, label, ok := strings.Cut(one, "=")
		switch _, again := labels[prefix]; {
		case !ok || label == "" || cli.Escape(label) != label:
			return nil, cli.Usage("serve: --metrics-names is PREFIX=LABEL, as in deploy/shop/=shop, not %s", cli.Quote(one))
		case again:
			return nil, cli.Usage("serve: --metrics-names has the prefix %s twice", cli.Quote(prefix))
		}
		labels[prefix] = label
	}
	switch {
	case len(labels) > mostMetricsNames:
		return nil, cli.Usage("serve: --metrics-names: %d prefixes, at most %d", len(labels), mostMetricsNames)
	case len(labels) == 0:
		return nil, nil
	}
	return func(name string) string {
		label, longest := "other", -1
		for prefix, l := range labels {
			if len(prefix) > longest && strings.HasPrefix(name, prefix) {
				label, longest = l, len(prefix)
			}
		}
		return label
	}, nil
}

// findings returns those of doctor, and those about the server.
func findings(ctx context.Context, a *cli.App, s *serving) []driver.Finding {
	d := &checkup{}
	if t, err := cli.ParseStore(a.Store); err != nil {
		d.fail("store", "%s", cli.Escape(err.Error()))
	} else if err := d.examine(ctx, t); err != nil {
		d.fail("store", "%s: %s", t, t.Cause(err))
	} else if t.Scheme == "sqlite" || t.Scheme == "memory" {
		d.warn("serve", "%s is on this host alone: one replica serves it, and its locks reach no other host", t.Scheme)
	}
	if s.listen.PlainHTTP {
		d.warn("serve", "plain-http was allowed: what clients send, secrets included, is encrypted only as far as the proxy")
	}
	return d.findings
}

// A prober asks a server for its health.
type prober struct {
	http http.Client
	base string
}

// client reaches a server by its socket, if it has one. It does not verify the certificate, which
// is our own.
func (s *serving) client(socket, address string) *prober {
	p := &prober{http: http.Client{Timeout: 5 * time.Second}, base: "http://" + address}
	switch {
	case socket != "":
		var d net.Dialer
		p.base = "http://holdfast"
		p.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		}}
	case s.listen.Cert != "":
		p.base = "https://" + address
		p.http.Transport = &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	}
	return p
}

// ask reports what is wrong, if anything.
func (p *prober) ask(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+path, nil)
	if err != nil {
		return err
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
	if resp.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(text)))
	}
	return nil
}

// check asks a running server whether it is ready.
func (s *serving) check(ctx context.Context) error {
	p := s.client("", "")
	if s.url != "" {
		p.base = strings.TrimSuffix(s.url, "/")
	} else {
		path, err := s.socketPath()
		if err != nil {
			return err
		}
		if path == "" {
			return cli.Usage("serve check: --socket or --url?")
		}
		p = s.client(path, "")
	}
	if err := p.ask(ctx, "/readyz"); err != nil {
		return cli.Fail(cli.ExitNo, "not ready: %s", cli.Escape(err.Error()))
	}
	return nil
}

// notify reports a state to systemd, if the unit has Type=notify.
func notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if rest, abstract := strings.CutPrefix(path, "@"); abstract {
		path = "\x00" + rest
	}
	conn, err := net.Dial("unixgram", path)
	if err != nil {
		return
	}
	defer conn.Close()
	io.WriteString(conn, state)
}

// watchdog tells systemd that the server answers, three times per WATCHDOG_USEC.
func watchdog(ctx context.Context, p *prober) {
	every, err := time.ParseDuration(os.Getenv("WATCHDOG_USEC") + "us")
	if err != nil || every <= 0 {
		return
	}
	t := time.NewTicker(every / 3)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if p.ask(ctx, "/healthz") == nil {
				notify("WATCHDOG=1")
			}
		case <-ctx.Done():
			return
		}
	}
}
