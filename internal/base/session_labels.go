package base

import (
	"maps"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// MaxChanged is the most bytes of JSON that the changed labels of a session may take: each
// heartbeat carries them.
const MaxChanged = 64 << 10

// SetLabels makes the next heartbeat show labels of a claim in place of those in its record. It
// reports false, and changes nothing, if there is no room for them; c.Mu is held.
func (s *Session) SetLabels(nr int64, recorded, labels record.Labels) bool {
	if len(recorded)+len(labels)+len(s.labels) == 0 {
		return true
	}
	if maps.Equal(recorded, labels) {
		s.DropLabels(nr)
		return true
	}
	old, changed := s.labels[nr]
	size := s.labelsSize + sizeOfChange(labels)
	if changed {
		size -= sizeOfChange(old)
	}
	if size > MaxChanged {
		return false
	}
	if s.labels == nil {
		s.labels = make(record.ClaimLabels)
	}
	if labels == nil {
		labels = record.Labels{} // null would not say that there are none
	}
	s.labels[nr], s.labelsSize = labels, size
	return true
}

// DropLabels forgets that a claim has other labels than in its record; c.Mu is held.
func (s *Session) DropLabels(nr int64) {
	if old, ok := s.labels[nr]; ok {
		delete(s.labels, nr)
		s.labelsSize -= sizeOfChange(old)
	}
}

// sizeOfChange is the most that the changed labels of a claim take in a session record.
func sizeOfChange(labels record.Labels) int {
	return record.SizeOf(labels) + len(`"9223372036854775807":{},`)
}
