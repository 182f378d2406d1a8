//go:build linux

package story

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lock/holdfast/verify/check"
)

// A line of a file is a part of a history: the first says what it is of, then come
// the workers, what each told, and what was found when it was judged first.
type line struct {
	History *heading         `json:"history,omitempty"`
	Worker  *worker          `json:"worker,omitempty"`
	Of      string           `json:"of,omitempty"`
	Event   *Event           `json:"event,omitempty"`
	Found   *check.Violation `json:"found,omitempty"`
}

type heading struct {
	Title  string        `json:"title"`
	Healed int64         `json:"healed"`
	Slow   time.Duration `json:"slow"`
	Faults [][2]int64    `json:"faults,omitempty"`
	Notes  []Note        `json:"notes,omitempty"`
	Rows   []string      `json:"rows,omitempty"`
}

type worker struct {
	ID     string        `json:"id"`
	TTL    time.Duration `json:"ttl"`
	Killed int64         `json:"killed,omitempty"`
	Stops  [][2]int64    `json:"stops,omitempty"`
	Sleeps [][2]int64    `json:"sleeps,omitempty"`
	Broken bool          `json:"broken,omitempty"`
	Slow   int64         `json:"slowest,omitempty"`
	Fast   int64         `json:"fastest,omitempty"`
}

// Write writes a history, and what was found in it, as lines of JSON.
func (h *History) Write(w io.Writer, found []check.Violation) error {
	out := bufio.NewWriter(w)
	lines := json.NewEncoder(out)
	errs := []error{lines.Encode(line{History: &heading{h.Title, h.Healed, h.Slow, h.Faults, h.Notes, slices.Sorted(maps.Keys(h.Rows))}})}
	for _, s := range h.Stories {
		errs = append(errs, lines.Encode(line{Worker: &worker{s.ID, s.TTL, s.Killed, s.Stops, s.Sleeps, s.Broken, s.Slowest, s.Fastest}}))
		for i := range s.Events {
			errs = append(errs, lines.Encode(line{Of: s.ID, Event: &s.Events[i]}))
		}
	}
	for i := range found {
		errs = append(errs, lines.Encode(line{Found: &found[i]}))
	}
	return errors.Join(append(errs, out.Flush())...)
}

// Read reads a history, and what was found in it then.
func Read(r io.Reader) (h *History, found []check.Violation, err error) {
	h = &History{Rows: make(map[string]bool)}
	byID := make(map[string]*Story)
	lines := json.NewDecoder(bufio.NewReader(r))
	for n := 1; ; n++ {
		var l line
		if err := lines.Decode(&l); err == io.EOF {
			break
		} else if err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", n, err)
		}
		switch {
		case l.History != nil:
			h.Title, h.Healed, h.Slow, h.Faults, h.Notes = l.History.Title, l.History.Healed, l.History.Slow, l.History.Faults, l.History.Notes
			for _, key := range l.History.Rows {
				h.Rows[key] = true
			}
		case l.Worker != nil:
			s := &Story{ID: l.Worker.ID, TTL: l.Worker.TTL, Killed: l.Worker.Killed, Stops: l.Worker.Stops, Sleeps: l.Worker.Sleeps, Broken: l.Worker.Broken, Slowest: l.Worker.Slow, Fastest: l.Worker.Fast}
			byID[s.ID] = s
			h.Stories = append(h.Stories, s)
		case l.Event != nil && byID[l.Of] != nil:
			byID[l.Of].Events = append(byID[l.Of].Events, *l.Event)
		case l.Found != nil:
			found = append(found, *l.Found)
		default:
			return nil, nil, fmt.Errorf("line %d is no part of a history", n)
		}
	}
	if len(h.Stories) == 0 {
		return nil, nil, errors.New("nobody tells anything")
	}
	return h, found, nil
}
