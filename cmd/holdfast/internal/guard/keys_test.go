//go:build linux && !portableguard

package guard

import (
	"syscall"
	"testing"
	"time"
)

// A signal is that of a key if the listener has heard it as well, a moment earlier or later.
func TestTyped(t *testing.T) {
	const sig = syscall.SIGINT
	for _, test := range []struct {
		name  string
		heard func(k *Keys)
		want  bool
	}{
		{"heard before", func(k *Keys) { k.heard <- key{sig, time.Now()} }, true},
		{"heard after", func(k *Keys) { k.heard <- key{sig, time.Now().Add(time.Minute)} }, true},
		{"the listener is gone", func(k *Keys) { close(k.heard) }, true},
		{"not heard", func(*Keys) {}, false},
		{"heard long before", func(k *Keys) { k.heard <- key{sig, time.Now().Add(-2 * listens)} }, false},
		{"another was heard", func(k *Keys) { k.heard <- key{syscall.SIGQUIT, time.Now()} }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			k := &Keys{heard: make(chan key, 64)}
			test.heard(k)
			if got := k.Typed(sig); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
