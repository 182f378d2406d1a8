package holdfast

import (
	"context"
	"os"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/engine"
)

// A Lock is one grant of a name to one goroutine of this process.
type Lock engine.Lock

func (l *Lock) e() *engine.Lock { return (*engine.Lock)(l) }

// Name is the name that is locked.
func (l *Lock) Name() string { return l.e().Name() }

// Token is the fencing token: positive, and larger than that of every earlier grant of
// this name, for ever. Among shared holders the order may differ: a shared token is larger
// than those of all earlier exclusive holders.
func (l *Lock) Token() int64 { return l.e().Token() }

// Store is the store that the lock is in, for the fences of stores.
func (l *Lock) Store() driver.Store { return l.e().Store() }

// Slots is the most holders the lock tolerates at once: 1 exclusive, N slots,
// 0 any number (shared).
func (l *Lock) Slots() int { return l.e().Slots() }

// Context has the values of the acquiring context, but not its end: it ends
// when the lock is lost or released or the client is closed, and
// context.Cause tells which (ErrLost, ErrReleased, ErrClosed). A lock of a set has
// the context of the set.
func (l *Lock) Context() context.Context { return l.e().Context() }

// Err is nil while the lock is held, and afterwards says why it is not. It reads
// the clock itself, so it is right even if a timer is late: it is the check to make
// before an act. Only a fence covers what happens between the check and the act.
func (l *Lock) Err() error { return l.e().Err() }

// Deadline is the end of the trust window as of now; it moves with every
// heartbeat. It is for planning: Err decides. The time has a monotonic reading.
func (l *Lock) Deadline() time.Time { return l.e().Deadline() }

// TTL is how long the lock's session may be silent, as of now, before others may
// take the lock over.
func (l *Lock) TTL() time.Duration { return l.e().TTL() }

// Proof is the open file by which other processes of this host know that the
// lock's session lives. A child process that inherits it keeps the lock from
// being taken over before the TTL when this process dies. Proof is nil where there
// is no such file. The file must not be closed.
func (l *Lock) Proof() *os.File { return l.e().Proof() }

// Release ends belief in the lock at once and then gives it back. The write is sent
// even if ctx is done, so `defer lock.Release(ctx)` is right: ctx bounds only
// the wait for the answer. ErrLost: the lock had been lost before. Any other error is
// ambiguous: the client keeps trying to release the lock until its session ends. A
// second Release gives the same answer, or waits for it again.
func (l *Lock) Release(ctx context.Context) error { return l.e().Release(ctx) }

// SetLabels replaces the labels of the lock. Others see the new ones from the next heartbeat on:
// SetLabels itself writes nothing and does not wait. The labels are those of the claim. A lock that
// is handed on within the process shows those of its new holder. A shared lock shows those of its
// first request, until one of its holders in the process sets others.
//
// The labels may take 1 KiB as JSON, and the changed labels of all locks of the client 64 KiB. The
// error is that of Err if the lock is no longer held.
func (l *Lock) SetLabels(labels map[string]string) error { return l.e().SetLabels(labels) }

// Succeeded records that the work under the lock has succeeded: History.Success shows the time and
// the token of the latest success. Call it before you release the lock, so that the next holder
// sees it; Succeeded does not check that the lock is still held. It returns when the success is on
// the store's disk. It is recorded even where the store keeps no history.
func (l *Lock) Succeeded(ctx context.Context) error { return l.e().Succeeded(ctx) }

// FenceFailed emits FenceRefused if err is ErrLost, and returns err. Fences of stores call it.
func (l *Lock) FenceFailed(ctx context.Context, err error) error { return l.e().FenceFailed(ctx, err) }
