package record

import "bytes"

// A scanner reads what Encode writes: JSON of known fields, without spaces or escapes. Anything
// else is left to encoding/json. A queue of thousands is read whenever it moves, and encoding/json
// takes ten times as long.
type scanner struct {
	text []byte
	bad  bool
}

// scan reads a lock record. ok is false if encoding/json has to read it.
func (r *Lock) scan(value []byte) (ok bool) {
	s := scanner{text: value}
	s.object(func(key string) {
		switch key {
		case "next":
			r.Next = Token(s.number())
		case "holders":
			r.Holders = objects(&s, s.claim)
		case "waiters":
			r.Waiters = objects(&s, s.claim)
		default:
			s.bad = true
		}
	})
	return !s.bad && len(s.text) == 0
}

// scan reads a history record. ok is false if encoding/json has to read it.
func (h *History) scan(value []byte) (ok bool) {
	s := scanner{text: value}
	s.object(func(key string) {
		switch key {
		case "holds":
			h.Holds = objects(&s, s.hold)
		case "others":
			h.Others = s.sums()
		case "success":
			h.Success = new(Success)
			s.object(func(key string) { s.success(h.Success, key) })
		case "at":
			h.At = s.number()
		case "seen":
			h.Seen = s.strings()
		default:
			s.bad = true
		}
	})
	return !s.bad && len(s.text) == 0
}

func (s *scanner) hold(h *Hold, key string) {
	switch key {
	case "token":
		h.Token = Token(s.number())
	case "n":
		h.N = s.number()
	case "owner":
		s.object(func(key string) { s.owner(&h.Owner, key) })
	case "from":
		h.From = s.number()
	case "to":
		h.To = s.number()
	case "waited":
		h.Waited = s.number()
	case "end":
		h.End = End(s.string())
	case "by":
		h.By = new(Owner)
		s.object(func(key string) { s.owner(h.By, key) })
	case "reason":
		h.Reason = string(s.string())
	case "why":
		h.Why = string(s.string())
	default:
		s.bad = true
	}
}

// owner reads the fields of an owner that Brief keeps.
func (s *scanner) owner(o *Owner, key string) {
	switch key {
	case "name":
		o.Name = string(s.string())
	case "host":
		o.Host = string(s.string())
	case "pid":
		o.PID = int(s.number())
	case "user":
		o.User = string(s.string())
	case "program":
		o.Program = string(s.string())
	default:
		s.bad = true
	}
}

func (s *scanner) success(r *Success, key string) {
	switch key {
	case "token":
		r.Token = Token(s.number())
	case "at":
		r.At = s.number()
	case "by":
		s.object(func(key string) { s.owner(&r.By, key) })
	default:
		s.bad = true
	}
}

func (s *scanner) sums() (sums Sums) {
	s.object(func(key string) {
		switch key {
		case "count":
			sums.Count = s.number()
		case "held":
			sums.Held = s.number()
		case "waited":
			sums.Waited = s.number()
		default:
			s.bad = true
		}
	})
	return sums
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
	case "election":
		c.Election = s.truth()
	default:
		s.bad = true
	}
}

// objects reads a list of objects. value reads the value of a key.
func objects[T any](s *scanner, value func(to *T, key string)) (list []T) {
	if !s.skip('[') {
		return nil
	}
	list = make([]T, 0, 1+bytes.Count(s.text, []byte("},{")))
	for !s.bad {
		list = append(list, *new(T))
		s.object(func(key string) { value(&list[len(list)-1], key) })
		if s.next(']') {
			return list
		}
		s.skip(',')
	}
	return nil
}

// strings reads a list of strings.
func (s *scanner) strings() (list []string) {
	if !s.skip('[') {
		return nil
	}
	for !s.bad {
		list = append(list, string(s.string()))
		if s.next(']') {
			return list
		}
		s.skip(',')
	}
	return nil
}

// object reads an object. value reads the value of a key. A duplicate key is left to
// encoding/json, which decodes the second value into the first.
func (s *scanner) object(value func(key string)) {
	if !s.skip('{') {
		return
	}
	var room [16][]byte
	for keys := room[:0]; !s.bad; {
		key := s.string()
		for _, k := range keys {
			s.bad = s.bad || bytes.Equal(k, key)
		}
		keys = append(keys, key)
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

// next reads the character c if it comes next.
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

// truth reads true, which is the only truth value that is written.
func (s *scanner) truth() bool {
	rest, ok := bytes.CutPrefix(s.text, []byte("true"))
	s.text, s.bad = rest, s.bad || !ok
	return ok
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
