package state

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lock/holdfast"
)

// nameOf is the name of an entry whose writer has a lease: a random text and the lease in
// milliseconds. The lease is in the name because an entry may lose its text and keep its name: in a
// crash, or where a file server executes again requests that were lost on the way, such as those
// that make a file and rename it.
func nameOf(lease time.Duration) string {
	return fmt.Sprintf("%s-%d", rand.Text(), lease.Milliseconds())
}

// leaseOf is the lease in the name of an entry; 0: it is another program's.
func leaseOf(name string) time.Duration {
	random, digits, _ := strings.Cut(name, "-")
	if len(random) < 26 || strings.Trim(random, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
		return 0
	}
	ms, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || strconv.FormatInt(ms, 10) != digits || ms <= 0 || ms > holdfast.MaxTTL.Milliseconds() {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// An entry is what the text of a pending entry says about its writer. Only Proof decides anything;
// the rest is for people.
type entry struct {
	Proof   string `json:"proof,omitempty"` // identity of the entry's file, which its writer has locked
	Host    string `json:"host,omitempty"`
	PID     int    `json:"pid,omitempty"`
	User    string `json:"user,omitempty"`
	Program string `json:"program,omitempty"`
}

const maxEntry = 4096 // bytes

// parseEntry reads what a writer of ours has written. Of any other text it returns nothing.
func parseEntry(text []byte) entry {
	var e entry
	if len(text) > maxEntry || json.Unmarshal(text, &e) != nil {
		return entry{}
	}
	return e
}

func (e entry) encode() []byte {
	e.Host, e.User, e.Program = shorten(e.Host), shorten(e.User), shorten(e.Program)
	text, err := json.Marshal(e)
	if err != nil {
		panic(err) // it has only strings and numbers
	}
	return append(text, '\n')
}

func shorten(s string) string { return strings.ToValidUTF8(s[:min(len(s), 100)], "\uFFFD") }

const maxKey = 256 // bytes of the file

// parseKey returns the key that a file holds: 8 to 128 characters of base64 in
// any of its alphabets, hexadecimal or a UUID, and perhaps a newline.
// Anything else, as after a crash, is no key.
func parseKey(text []byte) (string, bool) {
	key := strings.TrimSuffix(string(text), "\n")
	if len(key) < 8 || len(key) > 128 {
		return "", false
	}
	for _, c := range []byte(key) {
		switch {
		case 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', '0' <= c && c <= '9', strings.IndexByte("+/=_.-", c) >= 0:
		default:
			return "", false
		}
	}
	return key, true
}

// A sight is what a reader knows of a pending entry.
type sight struct {
	limit time.Duration // how long its writer may be silent
	most  time.Duration // how long if its lock is held: the process may hang, or have left the file to another
	lock  lockState
	age   time.Duration // since its last renewal, by the clock of the host that keeps the file; negative: unknown
	stood time.Duration // how long this process has seen it stand unchanged, by its own clock
}

// A lockState is what this host's kernel knows of an entry's writer.
type lockState int8

const (
	unknown lockState = iota
	held              // the writer lives, or a process that it has started
	free              // the writer is dead
)

// dead says whether the writer is dead, or as good as dead: a writer that keeps the
// protocol has stopped believing in its lease before that.
func (s sight) dead() bool { return s.lock == free || s.left() <= 0 }

// left is how much longer the writer may be silent.
func (s sight) left() time.Duration {
	limit := s.limit
	if s.lock == held {
		limit = max(limit, s.most)
	}
	return limit - max(s.age, s.stood)
}
