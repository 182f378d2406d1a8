package record

import (
	"encoding/json"
	"strconv"
)

// Encode returns the value to write over version old. It is empty if there is
// nothing to keep: no claim, no audit entry, and every token given so far is
// below the version of any later grant, which is at least old+2.
//
// The result is that of encoding/json, in less time.
func (r Lock) Encode(old Version) []byte {
	if r.vanishes(old) {
		return nil
	}
	if r.Next <= Token(old)+1 {
		r.Next = 0
	}
	b := make([]byte, 0, 32+128*(len(r.Holders)+len(r.Waiters)))
	b = append(b, '{')
	b = number(b, `"next":`, int64(r.Next))
	b = claims(b, `"holders":[`, r.Holders)
	b = claims(b, `"waiters":[`, r.Waiters)
	if len(r.Breaks) > 0 {
		b = append(append(b, `"breaks":`...), marshal(r.Breaks)...)
		b = append(b, ',')
	}
	return closed(b, '}')
}

// claims adds a list, unless it is empty. Like the rest, it ends in a comma.
func claims(b []byte, key string, list []Claim) []byte {
	if len(list) == 0 {
		return b
	}
	b = append(b, key...)
	for i := range list {
		b = append(list[i].append(b), ',')
	}
	return append(closed(b, ']'), ',')
}

func (c *Claim) append(b []byte) []byte {
	b = append(b, '{')
	b = text(append(b, `"session":`...), c.Session)
	b = strconv.AppendInt(append(b, `,"nr":`...), c.Nr, 10)
	b = strconv.AppendInt(append(b, `,"slots":`...), int64(c.Slots), 10)
	b = append(b, ',')
	b = number(b, `"token":`, int64(c.Token))
	b = number(b, `"off":`, c.Off)
	b = number(b, `"n":`, c.N)
	b = strconv.AppendInt(append(b, `"ttl":`...), c.TTL, 10)
	b = strconv.AppendInt(append(b, `,"since":`...), c.Since, 10)
	b = append(b, ',')
	b = number(b, `"granted":`, c.Granted)
	if c.Reason != "" {
		b = append(text(append(b, `"reason":`...), c.Reason), ',')
	}
	b = number(b, `"retries":`, c.Retries)
	if c.Set != "" {
		b = append(text(append(b, `"set":`...), c.Set), ',')
	}
	if len(c.Labels) > 0 {
		b = append(append(append(b, `"labels":`...), marshal(c.Labels)...), ',')
	}
	if c.Election {
		b = append(b, `"election":true,`...)
	}
	return closed(b, '}')
}

// number adds a number, unless it is 0.
func number(b []byte, key string, n int64) []byte {
	if n == 0 {
		return b
	}
	return append(strconv.AppendInt(append(b, key...), n, 10), ',')
}

// text adds a string.
func text(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return append(b, marshal(s)...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

// closed ends a list or an object, replacing its last comma.
func closed(b []byte, end byte) []byte {
	if last := len(b) - 1; b[last] == ',' {
		b = b[:last]
	}
	return append(b, end)
}

func marshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // only plain fields
	}
	return text
}
