package holdfast

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/base"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// Show returns who holds a name and who waits for it. A free name is no error. If the session
// of a claim still has no record after a second, only Owner.Session is set in Owner.
func (c *Client) Show(ctx context.Context, name string) (Info, error) {
	if err := (driver.Names.Key(name)).Check(); err != nil {
		return Info{}, fmt.Errorf("show: %w", err)
	}
	recs, err := c.e.Store.Load(ctx, []driver.Key{driver.Names.Key(name), driver.Audits.Key(name)}, driver.Fresh)
	if err != nil {
		return Info{}, fmt.Errorf("show %q: %w", name, err)
	}
	info := []Info{{Name: name}}
	if err := info[0].read(recs[0], recs[1]); err != nil {
		return Info{}, fmt.Errorf("show %q: %w", name, err)
	}
	if err := c.fillAll(ctx, info); err != nil {
		return Info{}, fmt.Errorf("show %q: %w", name, err)
	}
	return info[0], nil
}

// List yields all names in use that begin with prefix, in byte order, a page at a time. While
// the caller uses one page, the next is loaded. It is no snapshot: each name is as it was when
// its page was read.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return c.ListAfter(ctx, prefix, "")
}

// ListAfter is List for the names that come after a given name: the next page of a list.
func (c *Client) ListAfter(ctx context.Context, prefix, after string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		for page, err := range ahead(ctx, c, c.pages(driver.Names, prefix, after)) {
			if err != nil {
				yield(Info{}, fmt.Errorf("list: %w", err))
				return
			}
			if !c.listPage(ctx, page, yield) {
				return
			}
		}
	}
}

// A page is some of the records of a space, and the audits of the names that have one.
type page struct {
	names  []string
	recs   []driver.Record // of each name
	audits map[string]driver.Record
}

// pageOfNames is how many names are read at first, and largestPage how many at a time if there
// are many. Histories are large, and are always read pageOfNames at a time.
const (
	pageOfNames = 500
	largestPage = 2000
)

// pages loads the records of all names of a space that begin with prefix and come after a given
// name. Pages of locks include their audits.
func (c *Client) pages(space driver.Space, prefix, after string) func(context.Context) iter.Seq2[page, error] {
	return func(ctx context.Context) iter.Seq2[page, error] {
		return func(yield func(page, error) bool) {
			after := max(after, lastBefore(prefix))
			audits := auditNames{after: after}
			for most := pageOfNames; ; {
				names, err := c.e.Store.Keys(ctx, space, after, most)
				if err != nil {
					yield(page{}, err)
					return
				}
				if len(names) == 0 {
					return
				}
				after = names[len(names)-1]
				past := strings.Compare(after, prefix) > 0 && !strings.HasPrefix(after, prefix)
				names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, prefix) })
				if len(names) > 0 {
					p, err := c.loadPage(ctx, space, names, &audits)
					if !yield(p, err) || err != nil {
						return
					}
				}
				if past {
					return
				}
				if space != driver.Histories {
					most = largestPage
				}
			}
		}
	}
}

func (c *Client) loadPage(ctx context.Context, space driver.Space, names []string, audits *auditNames) (p page, err error) {
	keys := make([]driver.Key, 0, len(names))
	for _, n := range names {
		keys = append(keys, driver.Key{Space: space, Name: n})
	}
	if space == driver.Names {
		audited, err := audits.upTo(ctx, c.e.Store, names[len(names)-1])
		if err != nil {
			return p, err
		}
		for _, n := range audited {
			if _, listed := slices.BinarySearch(names, n); listed {
				keys = append(keys, driver.Audits.Key(n))
			}
		}
	}
	recs, err := c.e.Store.Load(ctx, keys, driver.Fresh)
	if err != nil {
		return p, err
	}
	p = page{names: names, recs: recs[:len(names)], audits: make(map[string]driver.Record)}
	for i, k := range keys[len(names):] {
		p.audits[k.Name] = recs[len(names)+i]
	}
	return p, nil
}

// ahead yields what seq yields, and prepares the next value while one is used. It ends with an
// error if ctx or the client ends. For a closed client it prepares nothing.
func ahead[T any](ctx context.Context, c *Client, seq func(context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	type result struct {
		v   T
		err error
	}
	return func(yield func(T, error) bool) {
		within, cancel := context.WithCancel(ctx)
		results, whole := make(chan result), false
		c.e.Mu.Lock()
		if c.e.Ctx.Err() != nil {
			c.e.Mu.Unlock()
			cancel()
			seq(ctx)(yield)
			return
		}
		defer context.AfterFunc(c.e.Ctx, cancel)()
		c.e.Spawn(func() {
			defer close(results)
			for v, err := range seq(within) {
				select {
				case results <- result{v, err}:
				case <-within.Done():
					return
				}
			}
			whole = true
		})
		c.e.Mu.Unlock()
		defer func() {
			cancel()
			for range results { // until the goroutine has ended
			}
		}()
		ended := func() error {
			if ctx.Err() == nil && c.e.Ctx.Err() != nil {
				return ErrClosed
			}
			return ctx.Err()
		}
		for r := range results {
			if !yield(r.v, cmp.Or(ended(), r.err)) {
				return
			}
		}
		if !whole {
			var none T
			yield(none, ended())
		}
	}
}

// auditNames are the names that have an audit, in order: few of the names in use.
type auditNames struct {
	after string
	ahead []string
	done  bool
}

// upTo returns the names up to last that it has not returned yet.
func (a *auditNames) upTo(ctx context.Context, s driver.Store, last string) (names []string, err error) {
	for {
		i := 0
		for i < len(a.ahead) && a.ahead[i] <= last {
			i++
		}
		names, a.ahead = append(names, a.ahead[:i]...), a.ahead[i:]
		if a.done || len(a.ahead) > 0 {
			return names, nil
		}
		if a.ahead, err = s.Keys(ctx, driver.Audits, a.after, pageOfNames); err != nil {
			return nil, err
		}
		if a.done = len(a.ahead) == 0; !a.done {
			a.after = a.ahead[len(a.ahead)-1]
		}
	}
}

// lastBefore is the last name before all that begin with prefix, nearly.
func lastBefore(prefix string) string {
	if prefix == "" {
		return ""
	}
	short, last := prefix[:len(prefix)-1], prefix[len(prefix)-1]
	if last == 0 {
		return short
	}
	return short + string([]byte{last - 1}) + strings.Repeat("\xff", max(0, driver.MaxName-len(prefix)))
}

// listPage yields the names of a page that are in use, and reports whether to go on.
func (c *Client) listPage(ctx context.Context, p page, yield func(Info, error) bool) (goesOn bool) {
	infos := make([]Info, 0, len(p.names))
	for i, n := range p.names {
		info := Info{Name: n}
		if err := info.read(p.recs[i], p.audits[n]); err != nil {
			if !yield(Info{Name: info.Name}, fmt.Errorf("list %q: %w", info.Name, err)) {
				return false
			}
			continue
		}
		if len(info.Holders)+len(info.Waiters) > 0 {
			infos = append(infos, info)
		}
	}
	if err := c.fillAll(ctx, infos); err != nil {
		yield(Info{}, fmt.Errorf("list: %w", err))
		return false
	}
	for _, info := range infos {
		if len(info.Holders)+len(info.Waiters) > 0 && !yield(info, nil) { // it may have ended since
			return false
		}
	}
	return true
}

// Watch yields the state of a name at once and then after changes, until ctx ends. Changes within a
// second or two of each other may come as one; the last state always comes.
func (c *Client) Watch(ctx context.Context, name string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		ch := make(chan struct{}, 1)
		defer c.e.Subscribe(ch, driver.Names.Key(name))()
		last := ""
		for {
			info, err := c.Show(ctx, name)
			if ctx.Err() != nil {
				return
			}
			sum := info.summary()
			if err != nil {
				sum = ""
			}
			if err != nil || sum != last {
				if last = sum; !yield(info, err) {
					return
				}
			}
			if !c.e.Doze(ctx, ch, base.LastPoll) {
				return
			}
		}
	}
}

// summary is what counts as a change for Watch.
func (i Info) summary() string {
	var b strings.Builder
	for _, cl := range slices.Concat(i.Holders, i.Waiters) {
		fmt.Fprintf(&b, "%s %d %v %v %v %v;", cl.ID, cl.Token, cl.Suspected, cl.Dead, cl.Kept, cl.Owner.Host == "")
	}
	fmt.Fprintf(&b, "%d", len(i.Breaks))
	return b.String()
}

// read fills in what a name's record and its audit tell.
func (i *Info) read(lock, audit driver.Record) error {
	rec, err := base.LockOf(lock)
	if err != nil {
		return err
	}
	i.Version = lock.Version
	for _, h := range rec.Holders {
		i.Holders = append(i.Holders, publicClaim(h, i.Name))
	}
	for _, w := range rec.Waiters {
		i.Waiters = append(i.Waiters, publicClaim(w, i.Name))
	}
	kept, err := record.DecodeAudit(audit.Value)
	if err != nil {
		return err
	}
	for _, b := range kept.Add(rec.Breaks) {
		i.Breaks = append(i.Breaks, BrokenClaim{Token: int64(b.Token), Was: Owner(b.Was), By: Owner(b.By), Reason: b.Reason, At: time.UnixMicro(b.At), Now: b.Now})
	}
	return nil
}

// fillAll adds what sessions say of the claims. A claim may be seen before its session is written,
// or after the session has ended: a name with such a claim is read again, for a while.
func (c *Client) fillAll(ctx context.Context, infos []Info) error {
	left := make([]*Info, len(infos))
	for i := range infos {
		left[i] = &infos[i]
	}
	for pause := base.FirstPoll / 8; ; pause *= 2 {
		sessions, last := make([]string, 0, len(left)), ""
		claims := make([][]Claim, 0, 2*len(left))
		for _, i := range left {
			claims = append(claims, i.Holders, i.Waiters)
		}
		for _, some := range claims {
			for n := range some {
				if id := some[n].Owner.Session; id != last { // neighbours often share a session
					sessions, last = append(sessions, id), id
				}
			}
		}
		looks, err := c.e.LoadSessions(ctx, sessions)
		if err != nil {
			return err
		}
		fill(c.e, looks, claims...)
		gone := make(map[string]bool)
		for id, s := range looks {
			if len(s.Rec.Value) == 0 {
				gone[id] = true
			}
		}
		isGone := func(claims []Claim) bool {
			for n := range claims {
				if gone[claims[n].Owner.Session] {
					return true
				}
			}
			return false
		}
		left = slices.DeleteFunc(left, func(i *Info) bool {
			return len(gone) == 0 || !isGone(i.Holders) && !isGone(i.Waiters)
		})
		if len(left) == 0 || pause > base.LastPoll/2 || !c.e.Doze(ctx, nil, pause) {
			return nil
		}
		if err := c.readAgain(ctx, left); err != nil {
			return err
		}
	}
}

// readAgain reads names anew.
func (c *Client) readAgain(ctx context.Context, infos []*Info) error {
	var keys []driver.Key
	for _, i := range infos {
		keys = append(keys, driver.Names.Key(i.Name), driver.Audits.Key(i.Name))
	}
	recs, err := c.e.Store.Load(ctx, keys, driver.Fresh)
	if err != nil {
		return err
	}
	for n, i := range infos {
		now := Info{Name: i.Name}
		if err := now.read(recs[2*n], recs[2*n+1]); err != nil {
			return err
		}
		*i = now
	}
	return nil
}
