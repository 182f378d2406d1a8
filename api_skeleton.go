package holdfast

import (
	"context"
	"iter"
	"os"
	"time"
)

// SKELETON: signatures only, replaced file by file.

type Client struct{}
type request struct {
	slots   int
	maxWait time.Duration
	bounded bool
	reason  string
	err     error
}

func (r *request) fail(err error) {}

func New(store Store, opts *Options) (*Client, error) { panic("skeleton") }
func (c *Client) Acquire(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	panic("skeleton")
}
func (c *Client) TryAcquire(ctx context.Context, name string, opts ...Option) (*Lock, error) {
	panic("skeleton")
}
func (c *Client) AcquireAll(ctx context.Context, names []string, opts ...Option) (Locks, error) {
	panic("skeleton")
}
func (c *Client) Do(ctx context.Context, name string, fn func(context.Context, *Lock) error, opts ...Option) error {
	panic("skeleton")
}
func (c *Client) Close() error { panic("skeleton") }

// AcquireFor takes a lock that no process keeps alive: it ends by itself d after
// the call was made, or by ReleaseToken. For scripts that wrap no command.
func (c *Client) AcquireFor(ctx context.Context, name string, d time.Duration, opts ...Option) (Claim, error) {
	panic("skeleton")
}

// ReleaseToken gives back a lock taken with AcquireFor. ErrReleased: it had ended.
// A lock whose session is alive and beating is refused (use Break).
func (c *Client) ReleaseToken(ctx context.Context, name string, token int64) error { panic("skeleton") }

type Lock struct{}

func (l *Lock) Name() string                      { panic("skeleton") }
func (l *Lock) Token() int64                      { panic("skeleton") }
func (l *Lock) Slots() int                        { panic("skeleton") }
func (l *Lock) Context() context.Context          { panic("skeleton") }
func (l *Lock) Err() error                        { panic("skeleton") }
func (l *Lock) Deadline() time.Time               { panic("skeleton") }
func (l *Lock) Release(ctx context.Context) error { panic("skeleton") }

// Proof is the open file by which processes of this host know that the lock's
// session lives; a child that inherits it keeps the lock from being taken over
// before the TTL. nil where there is none. It must not be closed.
func (l *Lock) Proof() *os.File { panic("skeleton") }

type Locks []*Lock

func (s Locks) Release(ctx context.Context) error { panic("skeleton") }

type Election struct{}

func (c *Client) Election(name string, opts ...Option) *Election { panic("skeleton") }
func (e *Election) Run(ctx context.Context, lead func(context.Context, *Lock) error) error {
	panic("skeleton")
}
func (e *Election) HasLock() (*Lock, bool)                              { panic("skeleton") }
func (e *Election) Leader(ctx context.Context) (Claim, error)           { panic("skeleton") }
func (e *Election) Observe(ctx context.Context) iter.Seq2[Claim, error] { panic("skeleton") }
func (e *Election) Resign(ctx context.Context) error                    { panic("skeleton") }
func (c *Client) Show(ctx context.Context, name string) (Info, error)   { panic("skeleton") }
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	panic("skeleton")
}
func (c *Client) Watch(ctx context.Context, name string) iter.Seq2[Info, error] { panic("skeleton") }
func (c *Client) Break(ctx context.Context, claim Claim, reason string) error   { panic("skeleton") }
func (c *Client) BreakNow(ctx context.Context, claim Claim, reason string) error {
	panic("skeleton")
}
func (c *Client) StoreTTL(ctx context.Context) (time.Duration, error)      { panic("skeleton") }
func (c *Client) SetStoreTTL(ctx context.Context, ttl time.Duration) error { panic("skeleton") }

// Sweep removes what is left over: tombstones, sessions of the dead, free records, rows of idle names.
// Clients do it in the background now and then; it is safe at any time.
func (c *Client) Sweep(ctx context.Context) (removed int, err error) { panic("skeleton") }

// Margin is the part of a TTL by which a holder stops trusting before others may bury it:
// max(ttl/10, min(1s, ttl/4)).
func Margin(ttl time.Duration) time.Duration { return max(ttl/10, min(time.Second, ttl/4)) }

// Fence is for the writers of stores: checks a token against a lock record, as read inside
// the user's transaction. last is the number the store keeps beside the record (its fence
// column, 0 at first); next is what it must keep from now on. ErrLost: does not hold it.
func (r Record) Fence(name string, token, last int64) (next int64, err error) { panic("skeleton") }
