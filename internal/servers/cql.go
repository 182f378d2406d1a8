package servers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// How many replicas have to answer a statement.
const (
	one    = 1
	quorum = 4
	all    = 5
)

// cql runs a statement on a node over a connection of its own, in version 4 of
// Cassandra's protocol, and returns the cells of all rows in one list. It is for
// queries whose results are text.
func cql(ctx context.Context, addr, statement string, consistency uint16) ([]string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	if _, err := exchange(conn, 0x01, []byte("\x00\x01\x00\x0bCQL_VERSION\x00\x053.0.0")); err != nil {
		return nil, err
	}
	body := binary.BigEndian.AppendUint32(nil, uint32(len(statement)))
	body = append(body, statement...)
	body = binary.BigEndian.AppendUint16(body, consistency)
	answer, err := exchange(conn, 0x07, append(body, 0))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", statement, err)
	}
	return cells(answer)
}

// exchange sends a request and returns the body of what comes back.
func exchange(conn io.ReadWriter, op byte, body []byte) ([]byte, error) {
	frame := binary.BigEndian.AppendUint32([]byte{4, 0, 0, 0, op}, uint32(len(body)))
	if _, err := conn.Write(append(frame, body...)); err != nil {
		return nil, err
	}
	head := make([]byte, 9)
	if _, err := io.ReadFull(conn, head); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[5:])
	if n > most {
		return nil, errors.New("this is no Cassandra")
	}
	answer := make([]byte, n)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return nil, err
	}
	if head[1]&0x08 != 0 { // warnings come first
		r := &cqlReader{b: answer}
		for range r.short() {
			r.next(r.short())
		}
		answer = r.b
	}
	if head[4] == 0 { // ERROR
		r := &cqlReader{b: answer}
		code := r.int()
		return nil, fmt.Errorf("%s (%#x)", r.next(r.short()), code)
	}
	return answer, nil
}

// cells are those of a RESULT.
func cells(b []byte) ([]string, error) {
	r := &cqlReader{b: b}
	if kind := r.int(); kind != 2 { // no rows
		return nil, nil
	}
	flags, columns := r.int(), r.int()
	if flags&2 != 0 { // there are more pages
		return nil, errors.New("too many rows")
	}
	if flags&1 != 0 {
		r.next(r.short())
		r.next(r.short())
	}
	for range columns {
		if flags&1 == 0 {
			r.next(r.short())
			r.next(r.short())
		}
		r.next(r.short())
		if kind := r.short(); kind == 0 || kind >= 0x20 {
			return nil, fmt.Errorf("a column of kind %#x", kind)
		}
	}
	var out []string
	for range r.int() * columns {
		if n := r.int(); n >= 0 {
			out = append(out, string(r.next(n)))
		} else {
			out = append(out, "")
		}
	}
	if r.less {
		return nil, io.ErrUnexpectedEOF
	}
	return out, nil
}

// A cqlReader reads the parts of a body.
type cqlReader struct {
	b    []byte
	less bool // the body was too short
}

func (r *cqlReader) next(n int) []byte {
	if n > len(r.b) {
		r.less, n = true, len(r.b)
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *cqlReader) int() int {
	b := append(bytes.Clone(r.next(4)), 0, 0, 0, 0)
	return int(int32(binary.BigEndian.Uint32(b)))
}

func (r *cqlReader) short() int {
	b := append(bytes.Clone(r.next(2)), 0, 0)
	return int(binary.BigEndian.Uint16(b))
}
