package core

import "bytes"

// A scanner reads what Encode writes: JSON without spaces and escapes, of fields that are known.
// Anything else is left to encoding/json. A queue of thousands is read whenever it moves, which
// takes encoding/json ten times as long.
type scanner struct {
	text []byte
	bad  bool
}

// scan reads a lock record. ok is false if encoding/json has to read it.
func (r *LockRecord) scan(value []byte) (ok bool) {
	s := scanner{text: value}
	s.object(func(key string) {
		switch key {
		case "next":
			r.Next = Token(s.number())
		case "holders":
			r.Holders = s.claims()
		case "waiters":
			r.Waiters = s.claims()
		default:
			s.bad = true
		}
	})
	return !s.bad && len(s.text) == 0
}

func (s *scanner) claims() (list []Claim) {
	if !s.skip('[') {
		return nil
	}
	list = make([]Claim, 0, 1+bytes.Count(s.text, []byte("},{")))
	for !s.bad {
		var c Claim
		s.object(func(key string) { s.claim(&c, key) })
		list = append(list, c)
		if s.next(']') {
			return list
		}
		s.skip(',')
	}
	return nil
}

func (s *scanner) claim(c *Claim, key string) {
	switch key {
	case "session":
		c.Session = string(s.string())
	case "nr":
		c.Nr = s.number()
	case "slots":
		c.Slots = int(s.number())
	case "token":
		c.Token = Token(s.number())
	case "off":
		c.Off = s.number()
	case "n":
		c.N = s.number()
	case "ttl":
		c.TTL = s.number()
	case "since":
		c.Since = s.number()
	case "granted":
		c.Granted = s.number()
	case "reason":
		c.Reason = string(s.string())
	case "retries":
		c.Retries = s.number()
	case "set":
		c.Set = string(s.string())
	case "labels":
		c.Labels = make(Labels)
		s.object(func(key string) { c.Labels[key] = string(s.string()) })
	default:
		s.bad = true
	}
}

// object reads one, with a function that reads the value of a key.
func (s *scanner) object(value func(key string)) {
	if !s.skip('{') {
		return
	}
	for !s.bad {
		key := s.string()
		if !s.skip(':') {
			return
		}
		value(string(key))
		if s.next('}') {
			return
		}
		s.skip(',')
	}
}

// skip reads one character.
func (s *scanner) skip(c byte) bool {
	if !s.next(c) {
		s.bad = true
	}
	return !s.bad
}

// next reads a character if it is the next.
func (s *scanner) next(c byte) bool {
	if s.bad || len(s.text) == 0 || s.text[0] != c {
		return false
	}
	s.text = s.text[1:]
	return true
}

// string reads a string of printable ASCII without escapes.
func (s *scanner) string() (text []byte) {
	if !s.skip('"') {
		return nil
	}
	for i, c := range s.text {
		switch {
		case c == '"':
			text, s.text = s.text[:i], s.text[i+1:]
			return text
		case c < ' ' || c > '~' || c == '\\':
			s.bad = true
			return nil
		}
	}
	s.bad = true
	return nil
}

// number reads a whole number of at most 18 digits.
func (s *scanner) number() (n int64) {
	minus := s.next('-')
	i := 0
	for ; i < len(s.text) && s.text[i] >= '0' && s.text[i] <= '9'; i++ {
		n = n*10 + int64(s.text[i]-'0')
		if i == 18 {
			s.bad = true
			return 0
		}
	}
	if i == 0 || i > 1 && s.text[0] == '0' {
		s.bad = true
	}
	if s.text = s.text[i:]; minus {
		n = -n
	}
	return n
}
