package holdfast

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/holdfast-lock/holdfast/internal/clock"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// fillOwner fills in what the process knows of itself.
func fillOwner(o Owner) Owner {
	o.Session = ""
	if o.Host == "" {
		o.Host, _ = os.Hostname()
		o.Host = record.Cut(o.Host, maxField)
	}
	if o.PID == 0 {
		o.PID = os.Getpid()
	}
	if o.User == "" {
		o.User = record.Cut(userName(), maxField)
	}
	if o.Program == "" && len(os.Args) > 0 {
		o.Program = record.Cut(filepath.Base(os.Args[0]), maxField)
	}
	if o.Address == "" {
		o.Address = hostAddress()
	}
	if o.Device == "" {
		o.Device = terminal()
	}
	if o.Started.IsZero() {
		o.Started = clock.Started.Round(0).Truncate(time.Millisecond)
	}
	return o
}

func userName() string {
	for _, v := range []string{"LOGNAME", "USER", "USERNAME"} {
		if name := os.Getenv(v); name != "" {
			return name
		}
	}
	if os.Getuid() == 0 {
		return "root"
	}
	return fmt.Sprintf("uid%d", os.Getuid())
}

// hostAddress is the address from which this host sends by its default route; "": it has none.
// Connecting a UDP socket sends nothing, waits for nothing and looks up no name: the kernel only
// chooses the route. RFC 5737 and RFC 3849 reserve these addresses for documentation.
var hostAddress = sync.OnceValue(func() string {
	for _, to := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		conn, err := net.Dial("udp", to)
		if err != nil {
			continue
		}
		local, ok := conn.LocalAddr().(*net.UDPAddr)
		conn.Close()
		if ok && local.IP.IsGlobalUnicast() {
			return local.IP.String()
		}
	}
	return ""
})
