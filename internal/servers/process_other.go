//go:build !linux

package servers

import (
	"errors"
	"os"
	"os/exec"
)

// Elsewhere servers can only be pointed at.
const supported = false

type account struct{ uid, gid int }

type treatment struct{}

var kill, freeze, thaw treatment

func accountOf(string) (*account, error) { return nil, errors.ErrUnsupported }
func start(*exec.Cmd, *account) error    { return errors.ErrUnsupported }
func startApart(*exec.Cmd) error         { return errors.ErrUnsupported }
func alive(int) bool                     { return true }
func signalAll(string, treatment) error  { return errors.ErrUnsupported }
func forget(string)                      {}
func lockFile(*os.File) error            { return errors.ErrUnsupported }
