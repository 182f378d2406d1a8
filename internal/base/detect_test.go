package base

import (
	"testing"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
)

// A notification of a death has the sessions ahead read in the next round of the poll loop,
// on a clock that goes on between two looks at it. (The fake clock of the other tests does
// not.)
func TestDeathNotification(t *testing.T) {
	c := &Base{}
	c.Detector.C = c
	c.Detector.Hurry()
	now := c.Now()
	if at := c.Detector.Next(nil); at == lease.Never || at > now {
		t.Errorf("the sessions are read %v after the round that follows the notification", at.Sub(now))
	}
}
