//go:build linux

package process

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/verify/process/life"
	"github.com/holdfast-lock/holdfast/verify/stores"
)

// roles are programs that use the library.
var roles = map[string]func(args []string) error{
	"hold":    hold,
	"pause":   pause,
	"crash":   crash,
	"swap":    swap,
	"trace":   trace,
	"rivals":  rivals,
	"reclaim": reclaim,
}

// A part is what the roles have in common.
type part struct {
	*flag.FlagSet
	name string
	ttl  time.Duration

	ctx    context.Context
	store  *stores.Store
	client *holdfast.Client
	lives  string
	input  chan struct{} // closed when standard input has ended
}

func newPart() *part {
	p := &part{FlagSet: flag.NewFlagSet("role", flag.ContinueOnError), ctx: context.Background()}
	p.StringVar(&p.name, "name", "x", "")
	p.DurationVar(&p.ttl, "ttl", 0, "")
	return p
}

// begin opens the store; wrap, if any, comes between it and the client.
func (p *part) begin(args []string, wrap func(driver.Store) driver.Store, trace *holdfast.Trace) (err error) {
	if err := p.Parse(args); err != nil {
		return err
	}
	p.lives = os.Getenv("PROCESS_LIVES")
	if p.store, err = stores.Open(p.ctx, os.Getenv("PROCESS_STORE")); err != nil {
		return err
	}
	store := p.store.Store
	if wrap != nil {
		store = wrap(store)
	}
	p.input = make(chan struct{})
	go func() { io.Copy(io.Discard, os.Stdin); close(p.input) }()
	p.client, err = holdfast.New(store, &holdfast.Options{TTL: p.ttl, Trace: trace})
	return err
}

func (p *part) end() error { return errors.Join(p.client.Close(), p.store.Close()) }

// over is whether standard input has ended.
func (p *part) over() bool {
	select {
	case <-p.input:
		return true
	default:
		return false
	}
}

// hold takes a lock, lives under it, and gives it back.
func hold(args []string) error {
	p := newPart()
	var (
		slots  = p.Int("slots", 1, "0: shared")
		time1  = p.Duration("for", 0, "each time; 0: until standard input ends")
		times  = p.Int("times", 1, "0: until standard input ends")
		count  = p.String("count", "", "file with a number to add one to")
		reader = holdfast.Shared()
	)
	if err := p.begin(args, nil, nil); err != nil {
		return err
	}
	for i := 0; (i < *times || *times == 0) && (*times > 0 || !p.over()); i++ {
		opts := []holdfast.Option{reader}
		if *slots > 0 {
			opts[0] = holdfast.Slots(*slots)
		}
		lock, err := p.client.Acquire(p.ctx, p.name, opts...)
		if err != nil {
			return err
		}
		l, err := life.Begin(p.lives, "", lock.Token())
		if err != nil {
			return err
		}
		n := 0
		if *count != "" {
			text, err := os.ReadFile(*count)
			if err != nil {
				return err
			}
			if n, err = strconv.Atoi(string(bytes.TrimSpace(text))); err != nil {
				return err
			}
		}
		switch {
		case *time1 > 0:
			l.For(*time1)
		default:
			for !p.over() && lock.Err() == nil {
				time.Sleep(time.Millisecond)
				l.Tick()
			}
		}
		if *count != "" {
			if err := os.WriteFile(*count, fmt.Appendln(nil, n+1), 0o600); err != nil {
				return err
			}
		}
		l.End()
		if err := lock.Release(p.ctx); err != nil && !p.over() {
			fmt.Println(err)
			break
		}
	}
	return p.end()
}
