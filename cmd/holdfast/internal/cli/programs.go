package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
)

// A Program has a database client that takes more time and memory to start than all the rest of
// the command. Holdfast becomes it (exec, same arguments) as soon as it has read the URL. So
// users of other stores do not pay for it: the client for etcd adds 7 MB and about half again
// to the cost of every start, the one for Spanner more. The program starts holdfast as its
// guard if holdfast is beside it; the two check the version of their protocol.
//
// Its name has the scheme of the URLs: holdfast-etcd is the one for etcd.
//
// Rejected: a separate process for the store, one more that can be stopped or killed alone.
type Program string

// Programs are those that holdfast can become.
var Programs = []Program{"etcd", "spanner"}

// Beside returns the path of a program next to this one, or "".
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

// become runs the program in place of this one. It returns only if it fails. A program in the
// current directory, which PATH may name as "." or by an empty entry, is not run: it would find
// the store's password in its environment.
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
