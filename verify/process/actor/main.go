//go:build linux

// Command actor is what the tests run under a lock: it leaves a record of its
// life (see package life), may be deaf to requests to end, and may have
// descendants that left its session and lost their parent.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast/verify/process/life"
)

var (
	dir     = flag.String("lives", "", "where to leave the record")
	world   = flag.String("alone", "", "count others of this world at the begin")
	hold    = flag.Duration("for", 0, "live that long; 0: until killed")
	stdin   = flag.Bool("stdin", false, "live until standard input ends")
	deaf    = flag.Bool("deaf", false, "ignore requests to end")
	brood   = flag.Bool("brood", false, "have a child in another session and an orphan")
	foster  = flag.Bool("foster", false, "only start an orphan and end")
	root    = flag.Bool("root", false, "become the user whom this program belongs to, for good, as sudo does")
	shut    = flag.Bool("shut", false, "close all files but the first three, as sudo does")
	say     = flag.String("say", "", "print this when begun")
	failing = flag.Int("status", 0, "exit status")
)

func main() {
	flag.Parse()
	if *shut {
		for fd := 3; fd < 256; fd++ {
			syscall.Close(fd)
		}
	}
	if *root {
		user := os.Geteuid()
		check(syscall.Setresuid(user, user, user))
	}
	if *foster {
		start("-brood=false", "-foster=false")
		return
	}
	if *deaf {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	}
	token, err := strconv.ParseInt(os.Getenv("HOLDFAST_TOKEN"), 10, 64)
	check(err)
	l, err := life.Begin(*dir, *world, token)
	check(err)
	if *brood {
		start("-brood=false")
		start("-brood=false", "-foster")
	}
	if *say != "" {
		fmt.Println(*say)
	}
	switch {
	case *stdin:
		var ended atomic.Bool
		go func() { io.Copy(io.Discard, os.Stdin); ended.Store(true) }()
		l.While(func() bool { return !ended.Load() })
	case *hold > 0:
		l.For(*hold)
	default:
		l.For(1000 * time.Hour)
	}
	l.End()
	os.Exit(*failing)
}

// start starts this program again, in a session of its own.
func start(more ...string) {
	c := exec.Command("/proc/self/exe", append(os.Args[1:], more...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	check(c.Start())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "actor:", err)
		os.Exit(70)
	}
}
