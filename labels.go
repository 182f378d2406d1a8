package holdfast

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// maxChanged is the most bytes of JSON that the changed labels of a session may take: each
// heartbeat carries them.
const maxChanged = 64 << 10

// checkLabels says what is wrong with the labels of a claim. It makes the map valid UTF-8.
func checkLabels(labels record.Labels) (record.Labels, error) {
	for key, value := range labels {
		if key == "" {
			return nil, errors.New("a key of Labels is empty")
		}
		if k, v := strings.ToValidUTF8(key, "\uFFFD"), strings.ToValidUTF8(value, "\uFFFD"); k != key || v != value {
			delete(labels, key)
			labels[k] = v
		}
	}
	if n := record.SizeOf(labels); n > record.MaxLabels {
		return nil, fmt.Errorf("Labels take %d bytes as JSON, at most %d", n, record.MaxLabels)
	}
	return labels, nil
}

// SetLabels replaces the labels of the lock. Others see the new ones from the next heartbeat on:
// SetLabels itself writes nothing and does not wait. The labels are those of the claim. A lock that
// is handed on within the process shows those of its new holder. A shared lock shows those of its
// first request, until one of its holders in the process sets others.
//
// The labels may take 1 KiB as JSON, and the changed labels of all locks of the client 64 KiB. The
// error is that of Err if the lock is no longer held.
func (l *Lock) SetLabels(labels map[string]string) error {
	checked, err := checkLabels(maps.Clone(labels))
	if err == nil {
		err = l.Err()
	}
	if err != nil {
		return fmt.Errorf("set labels of %q: %w", l.Name(), err)
	}
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	if l.err != nil {
		return fmt.Errorf("set labels of %q: %w", l.Name(), l.err)
	}
	if !l.sess.setLabels(l.nr, l.labels, checked) {
		return fmt.Errorf("set labels of %q: the changed labels of this client would take more than %d bytes", l.Name(), maxChanged)
	}
	return nil
}

// setLabels makes the next heartbeat show labels of a claim in place of those in its record. It
// reports false, and changes nothing, if there is no room for them; c.mu is held.
func (s *session) setLabels(nr int64, recorded, labels record.Labels) bool {
	if len(recorded)+len(labels)+len(s.labels) == 0 {
		return true
	}
	if maps.Equal(recorded, labels) {
		s.dropLabels(nr)
		return true
	}
	old, changed := s.labels[nr]
	size := s.labelsSize + sizeOfChange(labels)
	if changed {
		size -= sizeOfChange(old)
	}
	if size > maxChanged {
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

// dropLabels forgets that a claim has other labels than in its record; c.mu is held.
func (s *session) dropLabels(nr int64) {
	if old, ok := s.labels[nr]; ok {
		delete(s.labels, nr)
		s.labelsSize -= sizeOfChange(old)
	}
}

// sizeOfChange is the most that the changed labels of a claim take in a session record.
func sizeOfChange(labels record.Labels) int {
	return record.SizeOf(labels) + len(`"9223372036854775807":{},`)
}

// claim is the lock's claim as the record shows it, without what only its session knows.
func (l *Lock) claim() Claim {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	rec, _ := l.p.n.Record()
	claim, _, _ := rec.Find(l.sess.id, l.nr)
	return publicClaim(claim, l.Name())
}
