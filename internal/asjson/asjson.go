// Package asjson is the JSON that the command prints with --json and that its server answers with:
// durations in seconds, times as RFC 3339. Fields that the view holdfast_locks of an SQL store also
// has are named as they are there.
package asjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
)

type (
	// Info is what is known of a name.
	Info struct {
		Name    string  `json:"name"`
		Holders []Claim `json:"holders"`
		Waiters []Claim `json:"waiters"`
		Breaks  []Break `json:"breaks"`
	}
	// Change is the state of a name since a time, and the holds that ended then.
	Change struct {
		Time time.Time `json:"time"`
		Info
		Ended []Ended `json:"ended,omitempty"`
	}
	// Ended is a hold that has ended.
	Ended struct {
		Token int64           `json:"token"`
		Owner holdfast.Owner  `json:"owner"`
		End   string          `json:"end"` // released, broken, taken over, expired
		By    *holdfast.Owner `json:"by,omitempty"`
		Why   string          `json:"why,omitempty"`
	}
	// Claim is a holder or a waiter.
	Claim struct {
		ID          string            `json:"id"`
		Mode        string            `json:"mode"`
		Slots       int               `json:"slots"` // 0: shared
		Token       int64             `json:"token,omitempty"`
		Owner       holdfast.Owner    `json:"owner"`
		Reason      string            `json:"reason,omitempty"`
		Requested   time.Time         `json:"requested,omitzero"`
		Granted     time.Time         `json:"granted,omitzero"` // missing: it waits, or not known
		Waited      float64           `json:"waited"`           // until it was granted, or until now
		Retries     int64             `json:"retries"`          // writes that lost before it was in
		Labels      map[string]string `json:"labels,omitempty"`
		TTL         float64           `json:"ttl,omitempty"` // missing: it is detached, and ends
		BeatAge     *float64          `json:"beat_age"`      // null: cannot tell
		Detached    bool              `json:"detached,omitempty"`
		Ends        time.Time         `json:"ends,omitzero"`  // of a detached one
		Kept        bool              `json:"kept,omitempty"` // released, and shut until kept_until
		KeptUntil   time.Time         `json:"kept_until,omitzero"`
		Suspected   bool              `json:"suspected"`
		SuspectedBy string            `json:"suspected_by,omitempty"`
		Silent      bool              `json:"silent,omitempty"` // for its TTL: probably dead
		Dead        bool              `json:"dead"`
		Collecting  string            `json:"collecting,omitempty"`
		Election    bool              `json:"election,omitempty"`
	}
	// Finding is a line of doctor's output: its level is ok, warn or fail.
	Finding struct {
		Level   string `json:"level"`
		Subject string `json:"subject"`
		Text    string `json:"text"`
	}
	// Session is the life of a program in the store, or of a hold.
	Session struct {
		ID        string         `json:"id"`
		Owner     holdfast.Owner `json:"owner"`
		TTL       float64        `json:"ttl,omitempty"` // missing: it is detached, and ends
		BeatAge   *float64       `json:"beat_age"`      // null: cannot tell
		Detached  bool           `json:"detached,omitempty"`
		Ends      time.Time      `json:"ends,omitzero"`
		Suspected bool           `json:"suspected"`
		Dead      bool           `json:"dead"`
		Why       string         `json:"why,omitempty"`    // it is dead
		Names     []string       `json:"names,omitempty"`  // of a hold
		Client    string         `json:"client,omitempty"` // of a hold
	}
	// History is how a name was held before.
	History struct {
		Name    string     `json:"name"`
		Holds   []PastHold `json:"holds"` // the latest, newest first
		Others  HoldSums   `json:"others"`
		Success *Success   `json:"success,omitempty"`
	}
	// PastHold is a hold that has ended.
	PastHold struct {
		Token  int64           `json:"token"`
		Owner  holdfast.Owner  `json:"owner"`
		From   time.Time       `json:"from,omitzero"`
		To     time.Time       `json:"to"`
		Waited float64         `json:"waited"`
		End    string          `json:"end"` // released, lost, taken over, broken, expired
		By     *holdfast.Owner `json:"by,omitempty"`
		Reason string          `json:"reason,omitempty"`
		Why    string          `json:"why,omitempty"`
	}
	// HoldSums are sums of the holds that are not listed.
	HoldSums struct {
		Count  int64   `json:"count"`
		Held   float64 `json:"held"`
		Waited float64 `json:"waited"`
	}
	// Success is the latest work under a lock that is known to have succeeded.
	Success struct {
		Token int64          `json:"token"`
		By    holdfast.Owner `json:"by"`
		At    time.Time      `json:"at"`
		Ago   float64        `json:"ago"`
	}
	// Key is the key of what changes.
	Key struct {
		Key     string `json:"key"` // "": unknown
		Writing bool   `json:"writing"`
	}
	// Break is the record of a forced release.
	Break struct {
		Token  int64          `json:"token,omitempty"`
		Was    holdfast.Owner `json:"was"`
		By     holdfast.Owner `json:"by"`
		Reason string         `json:"reason"`
		At     time.Time      `json:"at"`
		Now    bool           `json:"now"`
	}
)

// Of is what is known of a name.
func Of(info holdfast.Info) Info {
	out := Info{info.Name, Claims(info.Holders), Claims(info.Waiters), make([]Break, len(info.Breaks))}
	for i, b := range info.Breaks {
		out.Breaks[i] = Break{b.Token, b.Was, b.By, b.Reason, b.At.UTC(), b.Now}
	}
	return out
}

// OfSession is a session.
func OfSession(s holdfast.Session) Session {
	return Session{ID: s.ID, Owner: s.Owner, TTL: ttl(s.TTL, s.Detached), BeatAge: age(s.BeatAge), Detached: s.Detached,
		Ends: s.Ends.UTC().Round(time.Millisecond), Suspected: s.Suspected, Dead: s.Dead, Why: s.Why, Names: s.Names, Client: s.Client}
}

// OfFinding is a line of doctor's output.
func OfFinding(f driver.Finding) Finding {
	level := map[driver.Level]string{driver.Good: "ok", driver.Warning: "warn", driver.Failure: "fail"}[f.Level]
	return Finding{Level: level, Subject: f.Subject, Text: f.Text}
}

// OfHistory is how a name was held before.
func OfHistory(h holdfast.History) History {
	out := History{Name: h.Name, Holds: make([]PastHold, len(h.Holds)), Others: HoldSums{h.Others.Count, seconds(h.Others.Held), seconds(h.Others.Waited)}}
	for i, p := range h.Holds {
		out.Holds[i] = PastHold{Token: p.Token, Owner: p.Owner, From: utc(p.From), To: utc(p.To), Waited: seconds(p.Waited), End: p.End, Reason: p.Reason, Why: p.Why}
		if p.By.Host != "" || p.By.User != "" || p.By.Name != "" {
			out.Holds[i].By = &p.By
		}
	}
	if s := h.Success; s != nil {
		out.Success = &Success{s.Token, s.By, utc(s.At), seconds(s.Ago)}
	}
	return out
}

// utc leaves the zero time as it is.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}

func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// ttl is how long a session may be silent. A detached session has an end instead.
func ttl(d time.Duration, detached bool) float64 {
	if detached {
		return 0
	}
	return seconds(d)
}

// age is how long ago something was, in seconds; null: cannot tell.
func age(d time.Duration) *float64 {
	if d < 0 {
		return nil
	}
	s := d.Round(time.Millisecond).Seconds()
	return &s
}

// Claims are the claims as a list, which is empty, not null, if there are none.
func Claims(claims []holdfast.Claim) []Claim {
	list := make([]Claim, len(claims))
	for i, c := range claims {
		list[i] = Claim{
			ID: c.ID, Mode: c.Mode(), Slots: c.Slots, Token: c.Token, Owner: c.Owner, Reason: c.Reason,
			Requested: c.Requested.UTC(), Granted: c.Granted.UTC(), Waited: seconds(c.Waited), Retries: c.Retries, Labels: c.Labels,
			TTL: ttl(c.TTL, c.Detached), BeatAge: age(c.BeatAge), Detached: c.Detached, Ends: c.Ends.UTC().Round(time.Millisecond),
			Kept: c.Kept, KeptUntil: c.KeptUntil.UTC().Round(time.Millisecond),
			Suspected: c.Suspected, SuspectedBy: c.SuspectedBy, Silent: c.Silent, Dead: c.Dead, Collecting: c.Collecting, Election: c.Election,
		}
	}
	return list
}

// Encode writes a value as JSON on a line of its own. What a terminal would not show, or
// would act on (DEL, C1, characters that are invisible or change the direction of text), is
// escaped, so that text written by strangers does no harm to its readers.
func Encode(w io.Writer, v any) error {
	var raw bytes.Buffer
	e := json.NewEncoder(&raw)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := Writer(w).Write(raw.Bytes())
	return err
}

// Writer writes JSON, or text, to w, and escapes what a terminal would act on, as Encode does.
func Writer(w io.Writer) io.Writer { return escaping{w} }

type escaping struct{ w io.Writer }

func (e escaping) Write(raw []byte) (int, error) {
	plain := func(c byte) bool { return ' ' <= c && c <= '~' || c == '\n' }
	i := 0
	for i < len(raw) && plain(raw[i]) {
		i++
	}
	if i == len(raw) { // as most of it
		return e.w.Write(raw)
	}
	text := append(make([]byte, 0, len(raw)+len(raw)/8), raw[:i]...)
	for _, r := range string(raw[i:]) {
		switch {
		case r == '\n' || strconv.IsPrint(r):
			text = utf8.AppendRune(text, r)
		case r < 0x10000:
			text = fmt.Appendf(text, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			text = fmt.Appendf(text, `\u%04x\u%04x`, high, low)
		}
	}
	if _, err := e.w.Write(text); err != nil {
		return 0, err
	}
	return len(raw), nil
}
