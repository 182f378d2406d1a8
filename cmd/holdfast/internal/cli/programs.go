package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
)

// A Program has the client of a database that takes more time and memory to start than all the
// rest of the command. Holdfast becomes it (exec, same arguments) as soon as it has read the
// URL. So users of other stores do not pay for it: the client for etcd adds 7 MB and about half
// again to what every start costs, that for Spanner more. That program's guard is holdfast
// again if it is beside it; the two say which version of their protocol they speak.
//
// It is known by the scheme of the URLs: that for etcd is holdfast-etcd.
//
// Rejected: a process for the store beside the command: one more that can be stopped or
// killed alone.
type Program string

// Programs are those of holdfast.
var Programs = []Program{"etcd", "spanner"}

// Beside is a program next to this one, or "".
func Beside(program string) string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	path := filepath.Join(filepath.Dir(self), program+filepath.Ext(self))
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() || path == self {
		return ""
	}
	return path
}

// become has the program go on in place of this one. It returns only if it fails.
// One of the current directory, which PATH may name as "." or by an empty entry, is
// not taken: it would find the store's password in its environment.
func (p Program) become() error {
	name := "holdfast-" + string(p)
	path := Beside(name)
	also := ""
	if path == "" {
		found, err := exec.LookPath(name)
		switch {
		case filepath.IsAbs(found):
			path = found
		case err == nil || errors.Is(err, exec.ErrDot):
			also = "; that of the current directory is not run"
		}
	}
	if path == "" {
		return Usage("%s: needs the program %s beside holdfast, or on PATH: go install ./cmd/holdfast/... has both%s", p, name, also)
	}
	return Fail(ExitFault, "%s cannot be run: %v", Escape(path), replace(path))
}
