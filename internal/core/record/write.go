package record

// A Write asks for Next to follow Old.
type Write struct {
	Old    Version
	Next   Lock
	Notify string // a session, Everyone or ""
	Lazy   bool
}

// Few is how many claims in a queue are no crowd.
const Few = 8

// Everyone as the Notify of a Write: all who watch.
const Everyone = "*"

// WriteOf is the write that has next follow was, the record of a version. It waits for the disk
// only if it gives someone a token. It wakes watchers only where someone waits: for a grant to
// another session than the writer's, or, of a claim that is handed on in memory, to learn that
// another is in line. A single holder always learns that where notifications carry the record, and
// elsewhere while few are in line: so its release follows the newest record and does not lose first.
// In a crowd a notification costs the store more than that release.
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
