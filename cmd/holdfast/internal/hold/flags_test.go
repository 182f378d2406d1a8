package hold

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/holdfast-lock/holdfast"
)

// Flags of those who want a lock are refused, or ask for what they say; and no duration
// that is taken is negative.
func FuzzFlags(f *testing.F) {
	f.Add("-s\x00-w\x0010s\x00--ttl\x0030s")
	f.Fuzz(func(t *testing.T, line string) {
		var w wish
		var l lease
		flags := pflag.NewFlagSet("run", pflag.ContinueOnError)
		flags.SetOutput(io.Discard)
		w.flags(flags)
		l.flags(flags, "", "", "")
		if err := flags.Parse(strings.Split(line, "\x00")); err != nil {
			return
		}
		if err := l.check(); err == nil && (l.ttl.Given && (l.ttl.Duration < holdfast.MinTTL || l.ttl.Duration > holdfast.MaxTTL) ||
			l.ttl.Given && l.killAfter.Given && l.killAfter.Duration > l.ttl.Duration/3) {
			t.Fatalf("%q: TTL %v, kill after %v", line, l.ttl, l.killAfter)
		}
		opts, err := w.options(flags)
		if err != nil {
			return
		}
		if w.wait.Duration < 0 || w.slots < 1 || w.slots > 1<<30 || len(w.reason) > 200 || w.shared && flags.Changed("slots") || w.noWait && w.wait.Given {
			t.Fatalf("%q asks for %+v", line, w)
		}
		want := 0
		for _, asked := range []bool{w.shared || w.slots > 1, w.noWait || w.wait.Given, w.reason != "", len(w.labels) > 0} {
			if asked {
				want++
			}
		}
		if len(opts) != want {
			t.Fatalf("%q: %d options, want %d", line, len(opts), want)
		}
	})
}
