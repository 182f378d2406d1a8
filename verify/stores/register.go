package stores

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/holdfast-lock/holdfast"
)

// Registers are values of an application, one for each name, which only who holds
// the lock on the name changes, under the fence that the store has for it: in a
// transaction with the lock where there are transactions, in a row of its own on
// Cassandra, and in a file with the tokens that have been there beside a directory.
// Each is 0 at first, and read as it stands.
type Registers interface {
	// Make makes the registers of some names, or has them be 0 again where nobody
	// has a lock.
	Make(ctx context.Context, names ...string) error
	// Put puts a value, unless the fence refuses it.
	Put(ctx context.Context, lock *holdfast.Lock, value int64) (Verdict, error)
	// Get reads.
	Get(ctx context.Context, name string) (int64, error)
	// Strict says whether the fence refuses by tokens alone.
	Strict(lock *holdfast.Lock) bool
}

// A Verdict is what became of a write.
type Verdict int

const (
	Ambiguous Verdict = iota // no answer
	Taken                    // it was
	Refused                  // by the fence
	Unsent                   // nothing was asked of the fence, or nothing was committed
)

func (v Verdict) String() string { return [...]string{"ambiguous", "taken", "refused", "unsent"}[v] }

// A Hook is what else is done in a transaction that puts a value: Begun after its
// begin, Fence in the place of the fence, Committing before its commit, and
// Committed after it. Each may be nil.
type Hook struct {
	Begun      func(ctx context.Context, exec func(query string, args ...any) error) error
	Fence      func(fence func(plain bool) error) error
	Committing func()
	Committed  func(error)
}

// PutSQL is Put in a transaction of a database, with whatever else there is to do in it.
func (s *Store) PutSQL(ctx context.Context, lock *holdfast.Lock, value int64, h Hook) (Verdict, error) {
	tx, err := s.DB.BeginTx(ctx, nil)
	if err != nil {
		return Unsent, err
	}
	defer tx.Rollback()
	exec := func(query string, args ...any) error {
		_, err := tx.ExecContext(ctx, s.SQL(query), args...)
		return err
	}
	if h.Begun != nil {
		if err := h.Begun(ctx, exec); err != nil {
			return Unsent, err
		}
	}
	if err := exec(`update registers set value = ?, token = ? where name = ?`, value, lock.Token(), lock.Name()); err != nil {
		return Unsent, err
	}
	fence := func(plain bool) error { return s.Fence(ctx, tx, lock, plain) }
	if h.Fence != nil {
		err = h.Fence(fence)
	} else {
		err = fence(false)
	}
	switch {
	case errors.Is(err, holdfast.ErrLost):
		return Refused, err
	case err != nil:
		return Unsent, err
	}
	if h.Committing != nil {
		h.Committing()
	}
	err = tx.Commit()
	if h.Committed != nil {
		h.Committed(err)
	}
	if err != nil {
		return Ambiguous, err
	}
	return Taken, nil
}

type inSQL struct{ s *Store }

func (r inSQL) Make(ctx context.Context, names ...string) error {
	if _, err := r.s.DB.ExecContext(ctx, `create table if not exists registers (name varchar(100) primary key, value bigint not null, token bigint not null)`); err != nil {
		return err
	}
	tx, err := r.s.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, name := range names {
		if _, err := tx.ExecContext(ctx, r.s.SQL(`delete from registers where name = ?`), name); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, r.s.SQL(`insert into registers (name, value, token) values (?, 0, 0)`), name); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (r inSQL) Put(ctx context.Context, lock *holdfast.Lock, value int64) (Verdict, error) {
	return r.s.PutSQL(ctx, lock, value, Hook{})
}

func (r inSQL) Get(ctx context.Context, name string) (value int64, err error) {
	err = r.s.DB.QueryRowContext(ctx, r.s.SQL(`select value from registers where name = ?`), name).Scan(&value)
	return value, err
}

func (r inSQL) Strict(*holdfast.Lock) bool { return false }

// A guarded is a value with the fence that guards it where nothing else does.
type guarded struct {
	Value int64
	Fence holdfast.TokenGate
}

func (g *guarded) put(lock *holdfast.Lock, value int64) error {
	if err := g.Fence.Admit(lock.Token(), lock.Slots() != 1); err != nil {
		return err
	}
	g.Value = value
	return nil
}

// inFiles are in files beside the store's directory, of which each writer has one to itself.
type inFiles struct{ dir string }

func (r inFiles) path(name string) string { return filepath.Join(r.dir, name) }

func (r inFiles) Make(_ context.Context, names ...string) error {
	err := os.MkdirAll(r.dir, 0o700)
	for _, name := range names {
		if err == nil {
			err = os.WriteFile(r.path(name), []byte("{}"), 0o600)
		}
	}
	return err
}

func (r inFiles) Put(_ context.Context, lock *holdfast.Lock, value int64) (Verdict, error) {
	path := r.path(lock.Name())
	door, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return Unsent, err
	}
	defer door.Close()
	if err := syscall.Flock(int(door.Fd()), syscall.LOCK_EX); err != nil {
		return Unsent, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Unsent, err
	}
	var g guarded
	if err := json.Unmarshal(text, &g); err != nil {
		return Unsent, err
	}
	if err := g.put(lock, value); err != nil {
		return Refused, err
	}
	if text, err = json.Marshal(g); err != nil {
		return Unsent, err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return Unsent, err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return Ambiguous, err
	}
	return Taken, nil
}

func (r inFiles) Get(_ context.Context, name string) (int64, error) {
	text, err := os.ReadFile(r.path(name))
	if err != nil {
		return 0, err
	}
	var g guarded
	err = json.Unmarshal(text, &g)
	return g.Value, err
}

func (r inFiles) Strict(*holdfast.Lock) bool { return true }

// besides is where the files of a directory's application are.
func besides(target string) string {
	return strings.TrimRight(strings.TrimPrefix(target, "dir:"), "/") + "-registers"
}
