//go:build unix

package driver_test

import (
	"path/filepath"
	"testing"

	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
)

// Reopen lets the tests open it a second time, as another process would.
func (s JSONFile) Reopen(*testing.T) driver.Store { return s }

// Restart has nothing to close: all is in the file.
func (s JSONFile) Restart(*testing.T) driver.Store { return s }

func fresh(t *testing.T) driver.Store { return JSONFile{filepath.Join(t.TempDir(), "locks.json")} }

func TestStore(t *testing.T)   { drivertest.Run(t, fresh) }
func TestClients(t *testing.T) { clienttest.Run(t, fresh) }
func TestFence(t *testing.T) {
	drivertest.RunFence(t, func(t *testing.T) drivertest.Fenced { return drivertest.Gated(fresh(t), nil) })
}

// A wrapper has the capabilities of what it wraps, if it has Unwrap.
func TestFind(t *testing.T) {
	s := JSONFile{}
	if _, ok := driver.Find[JSONFile](wrapper{s}); !ok {
		t.Error("what is wrapped is not found")
	}
	if _, ok := driver.Find[JSONFile](struct{ driver.Store }{s}); ok {
		t.Error("what is hidden is found")
	}
	if _, ok := driver.Find[driver.Watcher](wrapper{wrapper{s}}); ok {
		t.Error("a Watcher is found that is not there")
	}
}

type wrapper struct{ driver.Store }

func (w wrapper) Unwrap() driver.Store { return w.Store }
