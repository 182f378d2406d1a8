//go:build !faultinject

package base

import "github.com/holdfast-lock/holdfast/internal/machine"

// ofProcess is the machine of this process: the real one.
var ofProcess *machine.Machine
