package holdfast

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// A History is what the store remembers of the past holds of a name. It is for people: holds that
// ended in the last seconds before a crash may be missing.
type History struct {
	Name    string
	Holds   []PastHold // the latest, newest first
	Others  HoldSums   // all that are not listed
	Success *Success   // the latest work that succeeded; nil: none was recorded
}

// A PastHold is a hold that has ended. Times are by the clock of whoever wrote it.
type PastHold struct {
	Token  int64
	Owner  Owner     // Name, Host, PID, User and Program, each cut to what fits in a line
	From   time.Time // when it was granted; zero: not known
	To     time.Time
	Waited time.Duration // for its grant
	// End is "released", "lost" (its client stopped believing in it), "taken over" (its
	// session was declared dead, and its claim removed), "broken" or "expired" (of
	// AcquireFor: its time was over).
	End    string
	By     Owner  // the one that broke it, or took it over
	Reason string // why the lock was wanted
	Why    string // why it was lost, taken over or broken
}

// HoldSums are sums of holds.
type HoldSums struct {
	Count        int64
	Held, Waited time.Duration
}

// A Success is work under a lock that succeeded, as Lock.Succeeded has recorded it.
type Success struct {
	Token int64
	By    Owner
	At    time.Time     // by the store's clock where it has one, else by the holder's
	Ago   time.Duration // by the store's clock where it has one, else by ours
}

// History returns the latest holds of a name, and sums of the others. A hold that ended well is
// listed if it lasted, or was waited for, for a second or longer. A client records its ended holds
// after its next heartbeat, or as it closes. SetStoreHistory sets how many holds are listed. The
// history of a name is forgotten after 30 idle days, or 400 if it has a Success.
func (c *Client) History(ctx context.Context, name string) (History, error) {
	k := driver.Histories.Key(name)
	if err := k.Check(); err != nil {
		return History{}, fmt.Errorf("history: %w", err)
	}
	recs, err := c.e.Store.Load(ctx, []driver.Key{k}, driver.Fresh)
	if err != nil {
		return History{}, fmt.Errorf("history of %q: %w", name, err)
	}
	return publicHistory(name, recs[0])
}

// Histories yields the histories of all names that begin with prefix, in byte order, a page at a
// time. While the caller uses one page, the next is loaded.
func (c *Client) Histories(ctx context.Context, prefix string) iter.Seq2[History, error] {
	return func(yield func(History, error) bool) {
		for page, err := range ahead(ctx, c, c.pages(driver.Histories, prefix, "")) {
			if err != nil {
				yield(History{}, fmt.Errorf("histories: %w", err))
				return
			}
			for i, r := range page.recs {
				if len(r.Value) == 0 {
					continue
				}
				if h, err := publicHistory(page.names[i], r); !yield(h, err) {
					return
				}
			}
		}
	}
}

func publicHistory(name string, r driver.Record) (History, error) {
	rec, err := record.DecodeHistory(r.Value)
	if err != nil {
		return History{Name: name}, fmt.Errorf("history of %q: %w", name, err)
	}
	h := History{Name: name, Others: HoldSums{rec.Others.Count, micros(rec.Others.Held), micros(rec.Others.Waited)}}
	for _, e := range rec.Holds {
		p := PastHold{Token: int64(e.Token), Owner: Owner(e.Owner), To: time.UnixMicro(e.To), Waited: micros(e.Waited),
			End: string(e.End), Reason: e.Reason, Why: e.Why}
		if e.From > 0 {
			p.From = time.UnixMicro(e.From)
		}
		if e.By != nil {
			p.By = Owner(*e.By)
		}
		h.Holds = append(h.Holds, p)
	}
	if s := rec.Success; s != nil {
		now, ok := base.StoreTime(r)
		if !ok {
			now = time.Now().UnixMicro()
		}
		h.Success = &Success{Token: int64(s.Token), By: Owner(s.By), At: time.UnixMicro(s.At), Ago: max(micros(now-s.At), 0)}
	}
	return h, nil
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// StoreHistory is the store's setting of how many holds the history of a name lists: 0, 32
// or 128.
func (c *Client) StoreHistory(ctx context.Context) (int, error) {
	recs, err := c.e.Store.Load(ctx, []driver.Key{base.HistoryKey}, driver.Fresh)
	if err != nil {
		return 0, fmt.Errorf("read the setting history: %w", err)
	}
	return c.e.HistoryOf(recs[0])
}

// SetStoreHistory changes how many holds the history of a name lists: 0 (no more are written), 32
// or 128. Running clients adopt the change at a heartbeat, those with a TTL of their own within two
// minutes. The default is 32, but 0 where the store's writes are costly ([driver.Traits]).
func (c *Client) SetStoreHistory(ctx context.Context, holds int) error {
	if err := base.CheckHistory(holds); err != nil {
		return fmt.Errorf("set history: %w", err)
	}
	value, err := json.Marshal(base.HistorySetting{History: holds})
	if err != nil {
		return err
	}
	if _, err := c.e.Update(ctx, base.HistoryKey, driver.Everyone, func(driver.Record) ([]byte, error) { return value, nil }); err != nil {
		return fmt.Errorf("set history: %w", err)
	}
	return nil
}
