package check

import (
	"encoding/json"
	"time"
)

// The records as the published format has them. These types are not the
// library's own, so that a change of the format is noticed.

type lock struct {
	Next    int64   `json:"next"`
	Holders []claim `json:"holders"`
	Waiters []claim `json:"waiters"`
	Breaks  []broke `json:"breaks"`
}

type claim struct {
	Session string `json:"session"`
	Nr      int64  `json:"nr"`
	Slots   int    `json:"slots"`
	Token   int64  `json:"token"`
	Off     int64  `json:"off"`
	N       int64  `json:"n"`
	TTL     int64  `json:"ttl"`
	Since   int64  `json:"since"`
}

type broke struct {
	Session string `json:"session"`
	Nr      int64  `json:"nr"`
	Token   int64  `json:"token"`
	Now     bool   `json:"now"`
}

// Session is the value of a session's key.
type Session struct {
	TTL       int64           `json:"ttl"`   // milliseconds
	Grace     int64           `json:"grace"` // milliseconds
	Beat      int64           `json:"beat"`
	Nonce     string          `json:"nonce"`
	Detached  bool            `json:"detached"`
	Suspected json.RawMessage `json:"suspected"`
	Revoked   []revoked       `json:"revoked"`
	Dead      int64           `json:"dead"`
	Why       string          `json:"why"`
	Names     []string        `json:"names"` // of a hold, which any client may write for
}

// stoodWhenMarked is for how long the beat had stood when the session was marked.
func (s *Session) stoodWhenMarked() time.Duration {
	var mark struct {
		Age int64 `json:"age"` // microseconds
	}
	json.Unmarshal(s.Suspected, &mark)
	return time.Duration(mark.Age) * time.Microsecond
}

type revoked struct {
	Name string `json:"name"`
	Nr   int64  `json:"nr"`
}

type id struct {
	session string
	nr      int64
}

func (c claim) id() id { return id{c.Session, c.Nr} }

func (c claim) tokens() int64 { return max(c.N, 1) }

// ReadSession reads a session's value; an empty one is the zero Session.
func ReadSession(value string) (s Session, err error) {
	if value != "" {
		err = json.Unmarshal([]byte(value), &s)
	}
	return s, err
}

func (s Session) ttl() time.Duration { return time.Duration(s.TTL) * time.Millisecond }

func (s Session) live() bool { return s.Dead == 0 }

// readLock reads a lock's value as it stands at a version: a holder without a
// token was given the larger of version and next, plus its offset.
func readLock(value string, version int64) (l lock, err error) {
	if value == "" {
		return l, nil
	}
	if err := json.Unmarshal([]byte(value), &l); err != nil {
		return l, err
	}
	base := max(version, l.Next)
	for i := range l.Holders {
		h := &l.Holders[i]
		if h.Token == 0 {
			h.Token, h.Off = base+h.Off, 0
		}
		l.Next = max(l.Next, h.Token+h.tokens())
	}
	return l, nil
}

func (l lock) claims() []claim {
	return append(append([]claim(nil), l.Holders...), l.Waiters...)
}

// fits is the one rule of who goes in beside whom. A shared claim is as many
// holders as it has tokens.
func (c claim) fits(holders []claim) bool {
	n := c.many()
	for _, h := range holders {
		n += h.many()
	}
	for _, h := range holders {
		if h.Slots != 0 && n > h.Slots {
			return false
		}
	}
	return c.Slots == 0 || n <= c.Slots
}

func (c claim) many() int {
	if c.Slots != 0 || c.N < 2 {
		return 1
	}
	return int(c.N)
}
