//go:build unix

package driver_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
)

// JSONFile is the smallest store that processes of one host can share: each call reads one JSON
// file, each write replaces it. It is not meant for use: a call costs what all records weigh.
type JSONFile struct{ Path string }

type content struct {
	Floor int64          // no key that was swept had a higher version
	Rows  map[string]row // by space and name
}

type row struct {
	Version int64
	Value   []byte
	Written time.Time
}

// id keeps the bytes of a name, and their order.
func id(k driver.Key) string { return k.Space.String() + " " + hex.EncodeToString([]byte(k.Name)) }

func (r row) record() driver.Record {
	return driver.Record{Version: r.Version, Value: r.Value, Age: time.Since(r.Written)}
}

// lock locks a file beside the store's, as flock does. unlock may be called twice.
func (s JSONFile) lock(ctx context.Context, file string, how int) (unlock func() error, err error) {
	f, err := os.OpenFile(s.Path+file, os.O_CREATE|os.O_RDWR, 0o600)
	for err == nil && syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB) != nil {
		time.Sleep(time.Millisecond)
		err = ctx.Err()
	}
	return f.Close, errors.Join(err, ctx.Err())
}

// use calls f with what the file holds. What f changes is on disk when use returns; after an error
// it may be. Heartbeats share the turn that others wait for, so they wait for two calls at most.
func (s JSONFile) use(ctx context.Context, turn int, f func(*content) (changed bool)) error {
	next, err1 := s.lock(ctx, ".turn", turn)
	defer next()
	unlock, err2 := s.lock(ctx, ".lock", syscall.LOCK_EX)
	defer unlock()
	if turn == syscall.LOCK_EX {
		next()
	}
	c := content{Rows: make(map[string]row)}
	text, err3 := os.ReadFile(s.Path)
	if errors.Is(err3, os.ErrNotExist) {
		text, err3 = []byte("{}"), nil
	}
	if err := errors.Join(err1, err2, err3, json.Unmarshal(text, &c)); err != nil || !f(&c) {
		return err
	}
	text, err1 = json.Marshal(c)
	file, err2 := os.OpenFile(s.Path+".next", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	dir, err3 := os.Open(filepath.Dir(s.Path))
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	defer dir.Close()
	_, err := file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	return errors.Join(os.Rename(file.Name(), s.Path), dir.Sync())
}

func (s JSONFile) Load(ctx context.Context, keys []driver.Key, _ driver.Freshness) (records []driver.Record, err error) {
	if i := slices.IndexFunc(keys, func(k driver.Key) bool { return k.Check() != nil }); i >= 0 {
		return nil, keys[i].Check()
	}
	err = s.use(ctx, syscall.LOCK_EX, func(c *content) bool {
		for _, k := range keys {
			records = append(records, c.Rows[id(k)].record())
		}
		return false
	})
	return records, err
}

func (s JSONFile) CompareAndSwap(ctx context.Context, writes []driver.Write) (outcomes []driver.Outcome, err error) {
	turn := syscall.LOCK_SH
	for _, w := range writes {
		if err := w.Check(); err != nil {
			return nil, err
		}
		if w.Key.Space != driver.Sessions {
			turn = syscall.LOCK_EX
		}
	}
	err = s.use(ctx, turn, func(c *content) (changed bool) {
		for _, w := range writes {
			r := c.Rows[id(w.Key)]
			won := w.Old > 0 && w.Old == r.Version || w.Old == driver.IfEmpty && len(r.Value) == 0
			if won {
				r = row{max(r.Version+1, c.Floor+1, time.Now().UnixMicro()), w.Value, time.Now()}
				c.Rows[id(w.Key)], changed = r, true
			}
			outcomes = append(outcomes, driver.Outcome{Won: won, Record: r.record()})
		}
		return changed
	})
	return outcomes, err
}

func (s JSONFile) Keys(ctx context.Context, space driver.Space, after string, n int) (names []string, err error) {
	err = s.use(ctx, syscall.LOCK_EX, func(c *content) bool {
		for at, r := range c.Rows {
			in, name, _ := strings.Cut(at, " ")
			if text, err := hex.DecodeString(name); err == nil && in == space.String() && string(text) > after && len(r.Value) > 0 {
				names = append(names, string(text))
			}
		}
		return false
	})
	slices.Sort(names)
	return names[:min(n, len(names))], err
}

func (s JSONFile) Sweep(ctx context.Context, idle time.Duration) (removed int, err error) {
	err = s.use(ctx, syscall.LOCK_EX, func(c *content) bool {
		for at, r := range c.Rows {
			if len(r.Value) == 0 && time.Since(r.Written) >= idle {
				c.Floor = max(c.Floor, r.Version)
				delete(c.Rows, at)
				removed++
			}
		}
		return removed > 0
	})
	return removed, err
}

func (s JSONFile) Traits() driver.Traits { return driver.Traits{} }
