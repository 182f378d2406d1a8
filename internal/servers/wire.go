package servers

import (
	"bytes"
	"encoding/binary"
)

// A wire follows the protocol of a connection, PostgreSQL's or MySQL's, as far as
// needed to know what is executed and what came of it.
type wire struct {
	begun     bool
	mysql     bool              // there the server speaks first
	other     bool              // neither
	rest      []byte            // the beginning of a message whose end has not arrived
	prepared  map[string]string // SQL by the statement's name or number
	preparing string            // MySQL: the SQL whose number comes next
	bound     string            // PostgreSQL: the SQL of the portal
}

// most is the length that a message may have.
const most = 64 << 20

// splitPostgres splits PostgreSQL messages off b. rest is nil if b has something else.
func splitPostgres(b []byte, each func(kind byte, body []byte)) (rest []byte) {
	for len(b) >= 5 {
		n := binary.BigEndian.Uint32(b[1:])
		if b[0] < '1' || b[0] > 'z' || n < 4 || n > most {
			return nil
		}
		if uint32(len(b)) < n+1 {
			break
		}
		each(b[0], b[5:n+1])
		b = b[n+1:]
	}
	return append([]byte{}, b...)
}

// splitMySQL splits MySQL packets off b and returns what is left.
func splitMySQL(b []byte, each func(seq byte, body []byte)) (rest []byte) {
	for len(b) >= 4 {
		n := int(b[0]) | int(b[1])<<8 | int(b[2])<<16
		if len(b) < n+4 {
			break
		}
		each(b[3], b[4:n+4])
		b = b[n+4:]
	}
	return append([]byte{}, b...)
}

// request returns the SQL of what the server executes for a chunk, if it
// executes something.
func (w *wire) request(b []byte) (sql string, runs bool) {
	if !w.begun {
		w.begun = true
		if len(b) > 0 && b[0] == 0 { // PostgreSQL: a client begins with a length
			return "", false
		}
		w.other = true
	}
	if w.other {
		return string(b), true
	}
	if w.prepared == nil {
		w.prepared = map[string]string{}
	}
	b = append(w.rest, b...)
	if w.mysql {
		w.rest = splitMySQL(b, func(seq byte, body []byte) {
			switch {
			case seq != 0 || len(body) == 0:
			case body[0] == 0x03: // COM_QUERY
				sql, runs = sql+string(body[1:]), true
			case body[0] == 0x16: // COM_STMT_PREPARE
				w.preparing = string(body[1:])
			case body[0] == 0x17 && len(body) >= 5: // COM_STMT_EXECUTE
				sql, runs = sql+w.prepared[string(body[1:5])], true
			}
		})
		return sql, runs
	}
	w.rest = splitPostgres(b, func(kind byte, body []byte) {
		parts := bytes.SplitN(body, []byte{0}, 3)
		switch {
		case kind == 'Q':
			sql, runs = sql+string(body), true
		case kind == 'P' && len(parts) == 3: // Parse: a name, SQL
			w.prepared[string(parts[0])] = string(parts[1])
		case kind == 'B' && len(parts) == 3: // Bind: a portal, a name
			w.bound = w.prepared[string(parts[1])]
		case kind == 'E': // Execute
			sql, runs = sql+w.bound, true
		}
	})
	return sql, runs
}

// reply learns from a chunk of the server.
func (w *wire) reply(b []byte) {
	if !w.begun {
		w.begun, w.mysql = true, true
	}
	if w.preparing != "" && len(b) >= 9 {
		if b[4] == 0 {
			w.prepared[string(b[5:9])] = w.preparing
		}
		w.preparing = ""
	}
}

// verdict judges the part of a reply that has come: whether it is all there, whether the
// server did what it was asked, and whether no transaction is open after it.
func (w *wire) verdict(b []byte) (whole, applied, ended bool) {
	switch {
	case w.other:
		return true, true, true
	case w.mysql:
		var last []byte
		if rest := splitMySQL(b, func(_ byte, body []byte) { last = body }); len(rest) > 0 || len(last) == 0 {
			return false, false, false
		}
		return true, last[0] != 0xff, mysqlStatus(last)&1 == 0
	}
	applied = true
	rest := splitPostgres(b, func(kind byte, body []byte) {
		applied = applied && kind != 'E' // ErrorResponse
		if kind == 'Z' {                 // ReadyForQuery
			whole, ended = true, body[0] == 'I'
		}
	})
	return whole && len(rest) == 0 || rest == nil, applied, ended
}

// mysqlStatus is the status in an OK or EOF packet; its lowest bit is set in a
// transaction.
func mysqlStatus(b []byte) uint16 {
	at := 3 // EOF: a number of warnings
	if len(b) != 5 || b[0] != 0xfe {
		at = 1 // OK: how many rows, an id
		for i := 0; i < 2 && at < len(b); i++ {
			switch b[at] { // a number of variable length
			case 0xfc:
				at += 3
			case 0xfd:
				at += 4
			case 0xfe:
				at += 9
			default:
				at++
			}
		}
	}
	if len(b) < at+2 {
		return 0
	}
	return binary.LittleEndian.Uint16(b[at:])
}
