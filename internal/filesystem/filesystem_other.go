//go:build !linux && !darwin

package filesystem

import (
	"fmt"
	"runtime"
)

// Network names the network file system that path is on, where it can be
// known.
func Network(string) string { return "" }

// Local refuses file systems that are not known to be this kernel's alone.
func Local(path string) error {
	return fmt.Errorf("%s: not known to be local on %s", path, runtime.GOOS)
}

// Mounted says whether what is at path is mounted there by itself, as a single
// file can be on Linux.
func Mounted(string) bool { return false }

// Overlay says whether path is seen through an overlay.
func Overlay(string) bool { return false }

// Volatile says whether what is at path is gone when the machine restarts.
func Volatile(string) bool { return false }

// Options are the mount options of the file system that path is on, where they
// can be known.
func Options(string) []string { return nil }
