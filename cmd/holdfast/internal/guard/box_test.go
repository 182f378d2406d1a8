//go:build linux && !portableguard

package guard

import (
	"os"
	"testing"
)

// What a dead pair has left is no obstacle to a guard with the same number, as in pid
// namespaces that follow each other.
func TestBoxWithSamePID(t *testing.T) {
	left := newBox()
	if left == nil {
		t.Skip("NOT TESTED: no control group can be made here")
	}
	defer os.Remove(left.path)
	left.dir.Close() // as the pair dies
	b := newBox()
	if b == nil {
		t.Fatal("there is no control group beside one of the same number")
	}
	defer b.remove()
	b.sweep()
	if _, err := os.Stat(left.path); !os.IsNotExist(err) {
		t.Errorf("what the dead have left is still there: %v", err)
	}
}
