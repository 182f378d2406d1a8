package holdfast

import (
	"net/netip"
	"testing"
)

// The controlling terminal is read from /proc/self/stat, whatever the program is called.
func TestTerminal(t *testing.T) {
	for stat, want := range map[string]string{
		"4711 (holdfast) S 4700 4711 4700 34819 4711 4194304 1": "pts/3",
		"4711 (a) S ) 9) R 4700 4711 4700 34816 4711 4194304 1": "pts/0",
		"4711 (holdfast) S 4700 4711 4700 35072 4711":           "pts/256",
		"4711 (holdfast) S 4700 4711 4700 1025 4711":            "tty1",
		"4711 (holdfast) S 4700 4711 4700 1088 4711":            "ttyS0",
		"4711 (holdfast) S 4700 4711 4700 0 -1":                 "",
		"4711 (holdfast) S 4700":                                "",
		"4711 (holdfast":                                        "",
		"":                                                      "",
	} {
		if got := terminalOf([]byte(stat)); got != want {
			t.Errorf("%q: %q, want %q", stat, got, want)
		}
	}
}

// The address of a host is one, or nothing.
func TestHostAddress(t *testing.T) {
	if a := hostAddress(); a != "" {
		if ip, err := netip.ParseAddr(a); err != nil || !ip.IsGlobalUnicast() {
			t.Errorf("%q: %v", a, err)
		}
	}
}
