package explore

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/holdfast-lock/holdfast/internal/core/lease"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// An encoder writes a world so that two worlds that behave alike come out alike. The type of a
// number says what it means: instants count from now, versions and nonces are numbered in the
// order in which they come up, tokens count from the version of the lock. A new field of the
// core is encoded automatically; what is left out is listed in fields.go.
type encoder struct {
	buf      []byte
	w        *World
	ages     bool // the store has a clock
	alone    bool // holds may be left without a process
	sweeps   bool
	turns    bool          // goroutines of a client follow each other, so that core.Turn matters
	longest  lease.Instant // an instant longer ago counts as this
	at       int           // the name that tokens belong to
	versions numbering[record.Version]
	nonces   numbering[string]
}

// A numbering numbers values that are only compared for equality, in order of appearance.
type numbering[T comparable] []T

func (n *numbering[T]) of(v T) byte {
	i := slices.Index(*n, v)
	if i < 0 {
		i = len(*n)
		*n = append(*n, v)
	}
	return byte(i)
}

type coder func(e *encoder, p unsafe.Pointer)

var coders = map[reflect.Type]coder{}

func coderOf(t reflect.Type) coder {
	if c, ok := coders[t]; ok {
		return c
	}
	var self coder
	coders[t] = func(e *encoder, p unsafe.Pointer) { self(e, p) } // for types that contain themselves
	self = compile(t)
	coders[t] = self
	return self
}

// nameIn has the types that say which name their tokens belong to.
var nameIn = map[reflect.Type]func(e *encoder, p unsafe.Pointer) int{
	reflect.TypeFor[told]():          func(_ *encoder, p unsafe.Pointer) int { return (*told)(p).Name },
	reflect.TypeFor[user]():          func(_ *encoder, p unsafe.Pointer) int { return (*user)(p).Name },
	reflect.TypeFor[sweeper]():       func(_ *encoder, p unsafe.Pointer) int { return (*sweeper)(p).Name },
	reflect.TypeFor[lease.Breaker](): func(e *encoder, _ unsafe.Pointer) int { return e.w.Break.Name },
}

var special = map[reflect.Type]coder{
	reflect.TypeFor[lease.Instant]():  func(e *encoder, p unsafe.Pointer) { e.instant(*(*lease.Instant)(p), e.longest) },
	reflect.TypeFor[record.Version](): func(e *encoder, p unsafe.Pointer) { e.version(*(*record.Version)(p)) },
	reflect.TypeFor[record.Token]():   func(e *encoder, p unsafe.Pointer) { e.token(*(*record.Token)(p)) },
}

func compile(t reflect.Type) coder {
	if c, ok := special[t]; ok {
		return c
	}
	if t == reflect.TypeFor[op]() {
		return opCoder()
	}
	switch t.Kind() {
	case reflect.Struct:
		return ofStruct(t)
	case reflect.Pointer:
		elem := coderOf(t.Elem())
		if t.Elem().Name() == "room" { // no room counts as an empty one
			empty := reflect.New(t.Elem()).UnsafePointer()
			return func(e *encoder, p unsafe.Pointer) { elem(e, cmp.Or(*(*unsafe.Pointer)(p), empty)) }
		}
		return func(e *encoder, p unsafe.Pointer) {
			q := *(*unsafe.Pointer)(p)
			if e.buf = append(e.buf, bit(q != nil)); q != nil {
				elem(e, q)
			}
		}
	case reflect.Slice:
		elem, size := coderOf(t.Elem()), t.Elem().Size()
		byName := t.Elem() == reflect.TypeFor[lock]() || t.Elem() == reflect.TypeFor[queue]()
		return func(e *encoder, p unsafe.Pointer) {
			h := (*[]byte)(p) // only its length and data
			n := len(*h)
			e.buf = append(e.buf, byte(n))
			data := unsafe.Pointer(unsafe.SliceData(*h))
			for i := range n {
				if byName {
					e.at = i
				}
				elem(e, unsafe.Add(data, uintptr(i)*size))
			}
		}
	case reflect.Map:
		return ofMap(t)
	case reflect.Interface: // an error, or a tag
		return func(e *encoder, p unsafe.Pointer) {
			switch v := reflect.NewAt(t, p).Elem(); {
			case v.IsNil():
				e.buf = append(e.buf, 0)
			case v.Elem().Kind() == reflect.Int:
				e.buf = append(e.buf, 2+byte(v.Elem().Int()))
			default:
				e.buf = append(e.buf, 1)
			}
		}
	case reflect.String:
		return func(e *encoder, p unsafe.Pointer) { e.buf = append(append(e.buf, *(*string)(p)...), 0) }
	case reflect.Bool, reflect.Int8:
		return func(e *encoder, p unsafe.Pointer) { e.buf = append(e.buf, *(*byte)(p)) }
	case reflect.Int, reflect.Int64:
		return func(e *encoder, p unsafe.Pointer) { e.buf = binary.AppendVarint(e.buf, *(*int64)(p)) }
	}
	panic(fmt.Sprintf("a %s cannot be encoded", t))
}

func ofStruct(t reflect.Type) coder {
	type field struct {
		at uintptr
		of coder
	}
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		name := t.String() + "." + f.Name
		ticks, short := bounded[name]
		var of coder
		switch {
		case leftOut[name] != "":
			continue
		case f.Name == "Nonce":
			of = func(e *encoder, p unsafe.Pointer) { e.nonce(*(*string)(p)) }
		case short:
			of = func(e *encoder, p unsafe.Pointer) {
				if ticks == 0 || e.turns {
					e.instant(*(*lease.Instant)(p), tick*lease.Instant(ticks))
				}
			}
		case name == reloaded: // it matters once more than two writes have lost; each loss resets it
			lost := t.Field(i).Offset
			if f, ok := t.FieldByName("lost"); ok {
				lost = f.Offset - lost
			}
			of = func(e *encoder, p unsafe.Pointer) {
				e.buf = append(e.buf, bit(*(*bool)(p) && *(*int)(unsafe.Add(p, lost)) > 2))
			}
		case partly[name] != nil:
			of = partly[name]
		default:
			of = coderOf(f.Type)
		}
		fields = append(fields, field{f.Offset, of})
	}
	name := nameIn[t]
	return func(e *encoder, p unsafe.Pointer) {
		if name != nil {
			e.at = name(e, p)
		}
		for i := range fields {
			fields[i].of(e, unsafe.Add(p, fields[i].at))
		}
	}
}

func ofMap(t reflect.Type) coder {
	elem := t.Elem()
	of := coderOf(elem)
	return func(e *encoder, p unsafe.Pointer) {
		v := reflect.NewAt(t, p).Elem()
		if e.buf = append(e.buf, byte(v.Len())); v.Len() == 0 {
			return
		}
		for _, k := range sortedKeys(v) {
			e.buf = append(append(e.buf, k.String()...), 0)
			c := reflect.New(elem)
			c.Elem().Set(v.MapIndex(k))
			of(e, c.UnsafePointer())
		}
	}
}

func sortedKeys(v reflect.Value) []reflect.Value {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	return keys
}

var worldCoder = coderOf(reflect.TypeFor[World]())

// world writes a world from scratch.
func (e *encoder) world(w *World) []byte {
	e.buf, e.versions, e.nonces, e.w = e.buf[:0], e.versions[:0], e.nonces[:0], w
	worldCoder(e, unsafe.Pointer(w))
	return e.buf
}

func (e *encoder) instant(t, back lease.Instant) {
	if t == lease.Never {
		e.buf = append(e.buf, 255)
		return
	}
	if d := max(-e.longest, min(e.w.Now-t, back)); d%(tick/4) == 0 {
		e.buf = binary.AppendVarint(e.buf, int64(d/(tick/4))<<1)
	} else {
		e.buf = binary.AppendVarint(e.buf, int64(d)<<1|1)
	}
}

// wall writes what a wall clock showed.
func (e *encoder) wall(t int64) {
	if t != 0 {
		e.instant(lease.Instant(t-1)*1000, e.longest)
	}
}

func (e *encoder) version(v record.Version) {
	if v <= 0 {
		e.buf = append(e.buf, byte(1+v))
		return
	}
	e.buf = append(e.buf, 2+e.versions.of(v))
}

func (e *encoder) token(t record.Token) {
	if t == 0 {
		e.buf = append(e.buf, 0)
		return
	}
	e.buf = binary.AppendVarint(append(e.buf, 1), int64(t)-int64(e.w.Locks[e.at].least()))
}

func (e *encoder) nonce(s string) {
	if s == "" {
		e.buf = append(e.buf, 0)
		return
	}
	e.buf = append(e.buf, 1+e.nonces.of(s))
}

// opCoder leaves out what cannot matter any more: the content of a write that has arrived,
// or that must lose.
func opCoder() coder {
	write, attempt, observation := coderOf(reflect.TypeFor[record.Write]()), coderOf(reflect.TypeFor[lease.Attempt]()), coderOf(reflect.TypeFor[lease.Observation]())
	lock, session := coderOf(reflect.TypeFor[record.Lock]()), coderOf(reflect.TypeFor[record.Session]())
	return func(e *encoder, p unsafe.Pointer) {
		o := (*op)(p)
		e.at = o.Name
		e.buf = append(append(append(e.buf, byte(o.Kind), byte(o.From), byte(o.Name), bit(o.Applied)<<1|bit(o.Won)), o.Session...), 0)
		if e.turns {
			e.instant(o.Sent, tick)
		}
		switch {
		case o.Applied:
			e.version(o.Version)
			lock(e, unsafe.Pointer(&o.Lock))
			session(e, unsafe.Pointer(&o.Record))
			if e.ages {
				e.buf = binary.AppendVarint(e.buf, int64(min(o.Age, time.Duration(e.longest))))
			}
			switch o.Kind {
			case ofName:
				e.version(o.Write.Old)
				if o.Won {
					lock(e, unsafe.Pointer(&o.Write.Next))
				}
			case ofBeat:
				attempt(e, unsafe.Pointer(&o.Beat))
			case ofVerdict:
				e.buf = append(e.buf, byte(o.Verdict.Verdict))
			}
		case !e.w.mayWin(o):
			if e.buf = append(e.buf, 255); o.Kind == ofBeat {
				attempt(e, unsafe.Pointer(&o.Beat))
			} else if o.Kind == ofName {
				e.version(o.Write.Old)
			}
		case o.Kind == ofName:
			write(e, unsafe.Pointer(&o.Write))
		case o.Kind == ofBeat:
			attempt(e, unsafe.Pointer(&o.Beat))
		default:
			observation(e, unsafe.Pointer(&o.Verdict))
		}
	}
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
