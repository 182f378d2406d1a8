package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/asjson"
)

// An EventLog says what happens to the claims of this command, one event a line. The zero value
// logs nothing.
type EventLog struct {
	verbose bool
	to      string // FORMAT or FORMAT:FILE
	log     *slog.Logger
}

func (l *EventLog) Flags(f *pflag.FlagSet) {
	f.BoolVarP(&l.verbose, "verbose", "v", false, "say on standard error what happens, as --log text does")
	f.StringVar(&l.to, "log", "", "write what happens, one event a line, as `FORMAT[:FILE]`: json or text")
}

// Open begins the log that the flags ask for.
func (l *EventLog) Open() error {
	format, path, _ := strings.Cut(l.to, ":")
	switch {
	case l.verbose && l.to != "":
		return Usage("-v and --log exclude each other: -v is --log text")
	case l.verbose:
		format = "text"
	case l.to == "":
		return nil
	case format != "json" && format != "text":
		return Usage("--log %s: json or text, and a file if it is not standard error, as in: --log json:/var/log/holdfast.log", Quote(l.to))
	}
	to := os.Stderr
	if path != "" {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return Usage("--log: %v", err)
		}
		to = file // until the process ends
	}
	l.log = newLog(format, to)
	return nil
}

// newLog returns a log to a file or a terminal, in one of two formats.
func newLog(format string, to io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		switch a.Key {
		case slog.TimeKey:
			a.Value = slog.StringValue(a.Value.Time().UTC().Format("2006-01-02T15:04:05.000Z"))
		case slog.MessageKey:
			a.Key = "event"
		case slog.LevelKey:
			return slog.Attr{}
		}
		return a
	}}
	if to = asjson.Writer(to); format == "json" {
		return slog.New(slog.NewJSONHandler(to, opts))
	}
	return slog.New(slog.NewTextHandler(to, opts))
}

// Event writes a line. Durations are in seconds, and empty values are left out.
func (l *EventLog) Event(what string, pairs ...any) {
	if l.log == nil {
		return
	}
	var attrs []any
	for i := 0; i < len(pairs); i += 2 {
		value := pairs[i+1]
		switch v := value.(type) {
		case string:
			if v == "" {
				continue
			}
		case int64:
			if v == 0 {
				continue
			}
		case time.Duration:
			value = max(v, 0).Round(time.Millisecond).Seconds()
		}
		attrs = append(attrs, pairs[i], value)
	}
	l.log.Info(what, attrs...)
}

// Requested logs that a command is about to ask for names.
func (l *EventLog) Requested(names []string, reason string) {
	for _, name := range names {
		l.Event("requested", "name", name, "reason", reason)
	}
}

// Trace returns a trace that logs a client's events. Errors are logged without the store's secrets.
func (l *EventLog) Trace(t Target) *holdfast.Trace {
	if l.log == nil {
		return nil
	}
	text := t.errorText
	of := func(what string) func(context.Context, holdfast.Event) { // of a request, or of a lock
		return func(_ context.Context, e holdfast.Event) { l.ofLock(what, e, text(e.Err)) }
	}
	lost, broken := of("lost"), of("broken")
	released, alone := of("released"), of("left alone")
	var failing atomic.Bool // the latest heartbeat failed
	return &holdfast.Trace{
		Queued: of("waiting"), Acquired: of("granted"), Refused: of("refused"), GaveUp: of("gave up"), Returned: released,
		Released: func(ctx context.Context, e holdfast.Event) {
			if e.Detached {
				alone(ctx, e)
			} else {
				released(ctx, e)
			}
		},
		Lost: func(ctx context.Context, e holdfast.Event) {
			if l := (*holdfast.LostError)(nil); errors.As(e.Err, &l) {
				e.Reason, e.Err = text(errors.New(l.Cause())), nil
			}
			if e.Broken {
				broken(ctx, e)
			} else {
				lost(ctx, e)
			}
		},
		Broken: of("broke"), Suspected: of("suspected"), DeclaredDead: of("declared dead"),
		Heartbeat: func(_ context.Context, e holdfast.Event) {
			switch {
			case e.Err != nil:
				l.Event("heartbeat not answered", "took", e.Took, "left", time.Until(e.Until), "error", text(e.Err))
			case failing.Load():
				l.Event("heartbeat answered again", "took", e.Took, "left", time.Until(e.Until))
			}
			failing.Store(e.Err != nil)
		},
		Shortened: func(_ context.Context, e holdfast.Event) {
			l.Event("lease shortened", "ttl", e.TTL, "left", time.Until(e.Until))
		},
	}
}

// ofLock writes an event of a request, or of a lock.
func (l *EventLog) ofLock(what string, e holdfast.Event, err string) {
	pairs := []any{"name", e.Name, "token", e.Token, "session", e.Session, "reason", driver.Redact(e.Reason)}
	if e.Waited > 0 {
		pairs = append(pairs, "waited", e.Waited)
	}
	if e.Held > 0 {
		pairs = append(pairs, "held", e.Held)
	}
	l.Event(what, append(pairs, "error", err)...)
}

// errorText is an error without the store's secrets.
func (t Target) errorText(err error) string {
	switch {
	case err == nil:
		return ""
	case t.Location == nil:
		return driver.Redact(err.Error())
	}
	return t.Redact(err.Error())
}
