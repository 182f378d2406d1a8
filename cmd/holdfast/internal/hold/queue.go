package hold

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/driver"
)

// A queue tells a person, or a log, what is being waited for. It says nothing if
// there is no wait.
type queue struct {
	names    []string
	quiet    bool
	terminal bool
	began    time.Time

	mu   sync.Mutex
	name string // which one of a set is waited for

	cancel context.CancelFunc
	gone   chan struct{}
	told   bool // something was written
	length time.Duration
	lead   bool // for an election
}

func newQueue(names []string, quiet bool) *queue {
	return &queue{names: names, quiet: quiet, terminal: cli.IsTerminal(os.Stderr), began: time.Now(), name: names[0]}
}

// joined is called with each name that is waited for.
func (q *queue) joined(_ context.Context, e holdfast.Event) {
	q.mu.Lock()
	q.name = e.Name
	q.mu.Unlock()
}

func (q *queue) current() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.name
}

// watch begins to report the wait, after a while.
func (q *queue) watch(client *holdfast.Client) {
	ctx, cancel := context.WithCancel(context.Background())
	q.cancel, q.gone = cancel, make(chan struct{})
	if q.quiet {
		close(q.gone)
		return
	}
	go func() {
		defer close(q.gone)
		q.tell(ctx, client)
	}()
}

// stop ends the report, and erases its line on a terminal.
func (q *queue) stop() {
	q.cancel()
	<-q.gone
	q.length = time.Since(q.began)
	if q.told && q.terminal {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}

func (q *queue) waited() time.Duration { return q.length }

// done says that the lock is held, in a log that has mentioned the wait.
func (q *queue) done(locks []*holdfast.Lock) {
	if q.told && !q.terminal {
		cli.Say("holding %s after %s, token %d", cli.QuoteAll(q.names), cli.Brief(q.length), locks[0].Token())
	}
}

// tell rewrites a line on a terminal each second, or adds one to a log when there is news.
func (q *queue) tell(ctx context.Context, client *holdfast.Client) {
	patience := time.Second
	if q.terminal {
		patience = 300 * time.Millisecond
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(patience):
	}
	var news <-chan look
	stop := func() {}
	defer func() { stop() }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	name, now, holder, said := "", look{}, "", time.Time{}
	for {
		if current := q.current(); current != name {
			stop()
			name, now = current, look{}
			news, stop = follow(ctx, client, name)
		}
		select {
		case <-ctx.Done():
			return
		case l, ok := <-news:
			if !ok {
				news = nil // the line stays as it is
				continue
			}
			now = l
		case <-tick.C:
		}
		if ctx.Err() != nil {
			return
		}
		switch {
		case now.empty() || now.ours():
		case q.terminal:
			line := fmt.Sprintf("waiting %s for %s: %s", cli.Whole(time.Since(q.began)), cli.Quote(name), q.describe(now))
			fmt.Fprintf(os.Stderr, "\r%s\x1b[K", clip(line, cli.Columns(os.Stderr)-1))
			q.told = true
		case now.holder() != holder || time.Since(said) >= time.Minute:
			if now.err == nil && len(now.info.Holders) == 0 {
				continue // between two holders
			}
			holder, said = now.holder(), time.Now()
			if q.lead {
				cli.Say("candidate for %s; %s", cli.Quote(name), q.describe(now))
			} else {
				cli.Say("waiting for %s: %s", cli.Quote(name), q.describe(now))
			}
			q.told = true
		}
	}
}

// A look is what was last seen of a name.
type look struct {
	info holdfast.Info
	err  error
}

func (l look) empty() bool { return l.err == nil && l.info.Name == "" }

// ours reports whether we hold the name by now, so that nothing is waited for.
func (l look) ours() bool {
	return slices.ContainsFunc(l.info.Holders, func(c holdfast.Claim) bool { return c.Own })
}

// holder changes when the holder does.
func (l look) holder() string {
	if l.err != nil {
		return "?"
	}
	if len(l.info.Holders) == 0 {
		return ""
	}
	return l.info.Holders[0].ID
}

// follow watches a name until ctx is done or stop is called.
func follow(ctx context.Context, client *holdfast.Client, name string) (_ <-chan look, stop func()) {
	news := make(chan look)
	ctx, stop = context.WithCancel(ctx)
	go func() {
		defer close(news)
		for info, err := range client.Watch(ctx, name) {
			info.Name = name
			select {
			case news <- look{info, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return news, stop
}

func (q *queue) describe(l look) string {
	if l.err != nil {
		return "the store does not answer: " + driver.Redact(cli.Escape(l.err.Error()))
	}
	s := "free in a moment"
	if h := l.info.Holders; len(h) > 0 {
		s = cli.HeldBy(h)
		if q.lead {
			s = cli.Who(h[0].Owner) + " leads"
		}
	}
	for i, c := range l.info.Waiters {
		if !c.Own {
			continue
		}
		if i > 0 {
			sep := "; "
			if q.lead {
				sep = ", "
			}
			s += fmt.Sprintf("%s%d before you", sep, i)
		}
		break
	}
	return s
}

// clip cuts a line to the width of the terminal, so that it can be rewritten.
func clip(s string, width int) string {
	runes := []rune(s)
	if width > 1 && len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return s
}
