package record

// A Write asks for Next to follow Old.
type Write struct {
	Old    Version
	Next   Lock
	Notify string // a session, Everyone or ""
	Lazy   bool
}

// Few is the longest queue that is not yet a crowd.
const Few = 8

// Everyone as the Notify of a Write: all watchers.
const Everyone = "*"

// WriteOf is the write that replaces was, the record at a version, with next. It waits for the disk
// only if it gives someone a token. It notifies a session other than the writer's of a grant, and
// the holder of a claim that is handed on in memory of each new waiter. A single holder is always
// notified of new waiters where notifications carry the record, and elsewhere while few are in
// line: so its release follows the newest record and does not lose first. In a crowd a notification
// costs the store more than such a release.
func WriteOf(was *Lock, next Lock, version Version, tells bool, ours func(session string) bool) Write {
	w := Write{Old: version, Next: next, Lazy: !next.Gives()}
	if version == 0 {
		w.Old = IfEmpty
	}
	more := len(next.Waiters) > len(was.Waiters)
	tells = (tells || len(next.Waiters) <= Few) && more && len(next.Holders) == 1
	for _, h := range next.Holders {
		if !ours(h.Session) && (h.Token == 0 || tells) || more && h.Tokens() > 1 {
			if w.Notify != "" && w.Notify != h.Session {
				w.Notify = Everyone
				break
			}
			w.Notify = h.Session
		}
	}
	return w
}
