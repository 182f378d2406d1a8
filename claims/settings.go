package claims

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"time"
)

// settings are a Locker's part of the row in which all Lockers publish their settings: one
// column each, whose value is the time until which it counts. A Locker writes its column and
// reads the row before its first claim, so of two that differ the later one notices. From
// then on it only keeps its column from lapsing, while there is anything to lock.
type settings struct {
	id      string    // random, of this Locker alone
	turn    chan bool // taken by the goroutine that publishes
	name    []byte
	stamp   int64
	refresh time.Duration // when to write it again
	lapses  time.Duration // when no claim may be made on its strength any more
}

// settingsKey cannot be the row of a lock: no key has this length.
var settingsKey = []byte("\xff\xff\xff\xffholdfast")

func (o *Options) text() string {
	return fmt.Sprintf("unit=%v wait=%v expire=%v skew=%v", o.Unit, o.Wait, o.Expire, o.Skew)
}

// agree makes sure that our settings are published and that nobody's differ.
func (l *Locker) agree(ctx context.Context) error {
	s := &l.settings
	select {
	case s.turn <- true:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	began := l.steady()
	if s.name != nil && began < s.refresh {
		return nil
	}
	established := s.name != nil && began < s.lapses
	if s.name == nil {
		s.name = []byte(l.opts.text() + "\x00" + l.opts.Name + "~" + s.id)
	}
	until := l.wall().Add(2 * l.opts.Expire) // longer than the trust in any claim made before the settings lapse for us
	s.stamp = l.stamp(s.stamp)
	err := l.call(ctx, func(ctx context.Context) error {
		value := binary.BigEndian.AppendUint64(nil, uint64(until.UnixNano()))
		return l.columns.Add(ctx, settingsKey, Column{s.name, value}, nil, s.stamp)
	})
	switch {
	case err != nil && established:
		l.opts.Logger.Warn("settings not published again", "err", err)
		return nil // there is time to try again
	case err != nil:
		s.lapses = 0
		return fmt.Errorf("publishing settings: %w", err)
	case !established:
		s.lapses = 0
		columns, err := l.slice(ctx, settingsKey, nil)
		if err != nil {
			return err
		}
		if err := l.differ(columns); err != nil {
			if l.withdrawSettings(ctx) == nil {
				s.name = nil
			}
			return err
		}
	}
	s.refresh, s.lapses = began+l.trust()/3, began+l.trust()
	return nil
}

// differ looks for settings of others that still count and differ from ours.
func (l *Locker) differ(columns []Column) error {
	for _, col := range columns {
		text, rid, ok := bytes.Cut(col.Name, []byte{0})
		if !ok || len(col.Value) != 8 || string(text) == l.opts.text() {
			continue
		}
		left := time.Unix(0, int64(binary.BigEndian.Uint64(col.Value))).Sub(l.wall()) + l.opts.Skew
		if left > 0 {
			name, _, _ := cutLast(string(rid), "~")
			return &SettingsError{l.opts.text(), string(text), name, left}
		}
	}
	return nil
}

func (l *Locker) withdrawSettings(ctx context.Context) error {
	s := &l.settings
	s.stamp = l.stamp(s.stamp)
	ctx = context.WithoutCancel(ctx)
	return l.call(ctx, func(ctx context.Context) error {
		return l.columns.Delete(ctx, settingsKey, [][]byte{s.name}, s.stamp)
	})
}

// retract removes our settings, when there is nothing more to lock.
func (l *Locker) retract(ctx context.Context) error {
	if l.settings.name == nil || ctx.Err() != nil {
		return nil
	}
	if err := l.withdrawSettings(ctx); err != nil {
		return fmt.Errorf("removing published settings: %w; they lapse by themselves", err)
	}
	return nil
}
