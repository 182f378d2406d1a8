//go:build !faultinject

package holdfast

import "github.com/holdfast-lock/holdfast/internal/machine"

// ofProcess is the machine of this process: the real one.
var ofProcess *machine.Machine
