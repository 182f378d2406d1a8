package command

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/engine"
)

// linked are the engines in this program.
var linked map[string]engine.Engine

// beside is a program next to this one, or "".
func beside(program string) string {
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

// become has another program go on in place of this one. It returns only if it fails.
// One of the current directory, which PATH may name as "." or by an empty entry, is
// not taken: it would find the store's password in its environment.
func become(program, scheme string) error {
	path := beside(program)
	also := ""
	if path == "" {
		found, err := exec.LookPath(program)
		switch {
		case filepath.IsAbs(found):
			path = found
		case err == nil || errors.Is(err, exec.ErrDot):
			also = "; that of the current directory is not run"
		}
	}
	if path == "" || linked != nil {
		return usage("%s: needs the program %s beside holdfast, or on PATH: go install ./cmd/holdfast/... has both%s", scheme, program, also)
	}
	return fail(exitFault, "%s cannot be run: %v", escape(path), replace(path))
}
