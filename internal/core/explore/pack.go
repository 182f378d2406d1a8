package explore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"reflect"
	"time"
	"unsafe"

	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/lease"
)

// Worlds that wait for their turn are kept as bytes, which take a tenth of the memory and have
// nothing that the garbage collector has to follow. Unlike the output of an encoder, which is
// made to be compared, these bytes are the whole world: unpack restores it.

// A packer writes worlds as bytes and reads them again. It serves one goroutine.
type packer struct {
	buf      []byte            // being written or read
	requests [][]*core.Request // of each client, two for each user; they are compared by address
	client   int               // whose requests are read
	texts    map[string]string
}

func newPacker(s Setup) *packer {
	p := &packer{texts: make(map[string]string)}
	for _, users := range s.Users {
		var all []*core.Request
		for k, slots := range users {
			all = append(all, &core.Request{Slots: slots, Tag: k}, &core.Request{Slots: slots, Tag: k, Try: true})
		}
		p.requests = append(p.requests, all)
	}
	return p
}

// pack appends a world to buf.
func (p *packer) pack(buf []byte, w *World) []byte {
	p.buf = buf
	worldPacking.put(p, unsafe.Pointer(w))
	return p.buf
}

// unpack restores a packed world.
func (p *packer) unpack(packed []byte) *World {
	w := &World{}
	p.buf, p.client = packed, -1
	worldPacking.get(p, unsafe.Pointer(w))
	return w
}

// A packing writes and reads values of one type. Of a struct only what is not zero is written.
type packing struct {
	put  func(p *packer, at unsafe.Pointer)
	get  func(p *packer, at unsafe.Pointer) // into a zero value
	zero func(at unsafe.Pointer) bool
}

var (
	packings       = map[reflect.Type]*packing{}
	leftOutOfPacks = &packing{}
	worldPacking   = packingOf(reflect.TypeFor[World]())
	errNoAnswer    = errors.New("no answer")
)

func (p *packer) int() int64 {
	v, n := binary.Varint(p.buf)
	p.buf = p.buf[n:]
	return v
}

func packingOf(t reflect.Type) *packing {
	if c, ok := packings[t]; ok {
		return c
	}
	c := &packing{}
	packings[t] = c // before its parts, which may contain it
	switch t {
	case reflect.TypeFor[lease.Instant]():
		*c = ofInstant
		return c
	case reflect.TypeFor[*core.Request]():
		*c = ofRequest
		return c
	case reflect.TypeFor[core.Effects](), reflect.TypeFor[time.Time](), reflect.TypeFor[map[string][]*core.Guest]():
		packings[t] = leftOutOfPacks // a buffer; never set; no hold is followed
		return leftOutOfPacks
	}
	switch t.Kind() {
	case reflect.Struct:
		*c = packStruct(t)
	case reflect.Pointer:
		*c = packPointer(t)
	case reflect.Slice:
		*c = packSlice(t)
	case reflect.Map:
		*c = packMap(t)
	case reflect.Interface:
		*c = ofError
	case reflect.String:
		*c = ofString
	case reflect.Bool, reflect.Int8:
		*c = packing{
			put:  func(p *packer, at unsafe.Pointer) { p.buf = append(p.buf, *(*byte)(at)) },
			get:  func(p *packer, at unsafe.Pointer) { *(*byte)(at), p.buf = p.buf[0], p.buf[1:] },
			zero: func(at unsafe.Pointer) bool { return *(*byte)(at) == 0 },
		}
	case reflect.Int, reflect.Int64:
		*c = packing{
			put:  func(p *packer, at unsafe.Pointer) { p.buf = binary.AppendVarint(p.buf, *(*int64)(at)) },
			get:  func(p *packer, at unsafe.Pointer) { *(*int64)(at) = p.int() },
			zero: noWord,
		}
	}
	if c.put == nil || t.Kind() == reflect.Interface && t != reflect.TypeFor[error]() {
		panic(fmt.Sprintf("a %s cannot be packed", t))
	}
	return c
}

// noWord says whether the first word of a value is zero: all of a number, a pointer, a map, or
// an interface.
func noWord(at unsafe.Pointer) bool { return *(*uintptr)(at) == 0 }

// noLength says the same of the second word, which is the length of a string or a slice.
func noLength(at unsafe.Pointer) bool { return noWord(unsafe.Add(at, unsafe.Sizeof(at))) }

// Most instants are Never, or a whole number of quarters of a tick.
var ofInstant = packing{
	put: func(p *packer, at unsafe.Pointer) {
		switch t := *(*lease.Instant)(at); {
		case t == lease.Never:
			p.buf = append(p.buf, 0)
		case t%(tick/4) == 0:
			p.buf = binary.AppendVarint(append(p.buf, 1), int64(t/(tick/4)))
		default:
			p.buf = binary.AppendVarint(append(p.buf, 2), int64(t))
		}
	},
	get: func(p *packer, at unsafe.Pointer) {
		kind := p.buf[0]
		p.buf = p.buf[1:]
		switch t := (*lease.Instant)(at); kind {
		case 0:
			*t = lease.Never
		case 1:
			*t = lease.Instant(p.int()) * (tick / 4)
		default:
			*t = lease.Instant(p.int())
		}
	},
	zero: noWord,
}

var ofRequest = packing{
	put: func(p *packer, at unsafe.Pointer) {
		n := int64(-1)
		if r := *(**core.Request)(at); r != nil {
			n = 2*int64(r.Tag.(int)) + int64(bit(r.Try))
		}
		p.buf = binary.AppendVarint(p.buf, n)
	},
	get: func(p *packer, at unsafe.Pointer) {
		if n := p.int(); n >= 0 {
			*(**core.Request)(at) = p.requests[p.client][n]
		}
	},
	zero: noWord,
}

// ofError keeps whether there is an error: nobody asks which one it is.
var ofError = packing{
	put: func(p *packer, at unsafe.Pointer) { p.buf = append(p.buf, bit(*(*error)(at) != nil)) },
	get: func(p *packer, at unsafe.Pointer) {
		if p.buf[0] != 0 {
			*(*error)(at) = errNoAnswer
		}
		p.buf = p.buf[1:]
	},
	zero: noWord,
}

var ofString = packing{
	put: func(p *packer, at unsafe.Pointer) {
		s := *(*string)(at)
		p.buf = append(binary.AppendVarint(p.buf, int64(len(s))), s...)
	},
	get: func(p *packer, at unsafe.Pointer) {
		n := p.int()
		s, ok := p.texts[string(p.buf[:n])]
		if !ok {
			s = string(p.buf[:n])
			p.texts[s] = s
		}
		*(*string)(at), p.buf = s, p.buf[n:]
	},
	zero: noLength,
}

// packStruct writes a bit for each field, and the fields that are not zero.
func packStruct(t reflect.Type) packing {
	type field struct {
		at uintptr
		of *packing
	}
	var fields []field
	for i := range t.NumField() {
		if of := packingOf(t.Field(i).Type); of != leftOutOfPacks {
			fields = append(fields, field{t.Field(i).Offset, of})
		}
	}
	isClient := t == reflect.TypeFor[client]()
	return packing{
		put: func(p *packer, at unsafe.Pointer) {
			for n := 0; n < len(fields); n += 8 {
				mark, set := len(p.buf), byte(0)
				p.buf = append(p.buf, 0)
				some := fields[n:min(n+8, len(fields))]
				for i := range some {
					if f := &some[i]; !f.of.zero(unsafe.Add(at, f.at)) {
						set |= 1 << i
						f.of.put(p, unsafe.Add(at, f.at))
					}
				}
				p.buf[mark] = set
			}
		},
		get: func(p *packer, at unsafe.Pointer) {
			if isClient {
				p.client++
			}
			for n := 0; n < len(fields); n += 8 {
				set := p.buf[0]
				for p.buf = p.buf[1:]; set != 0; set &= set - 1 {
					f := &fields[n+bits.TrailingZeros8(set)]
					f.of.get(p, unsafe.Add(at, f.at))
				}
			}
		},
		zero: func(at unsafe.Pointer) bool {
			for i := range fields {
				if f := &fields[i]; !f.of.zero(unsafe.Add(at, f.at)) {
					return false
				}
			}
			return true
		},
	}
}

func packPointer(t reflect.Type) packing {
	of, elem := packingOf(t.Elem()), t.Elem()
	return packing{
		put: func(p *packer, at unsafe.Pointer) {
			q := *(*unsafe.Pointer)(at)
			if p.buf = append(p.buf, bit(q != nil)); q != nil {
				of.put(p, q)
			}
		},
		get: func(p *packer, at unsafe.Pointer) {
			is := p.buf[0] != 0
			if p.buf = p.buf[1:]; is {
				q := reflect.New(elem).UnsafePointer()
				*(*unsafe.Pointer)(at) = q
				of.get(p, q)
			}
		},
		zero: noWord,
	}
}

func packSlice(t reflect.Type) packing {
	of, size := packingOf(t.Elem()), t.Elem().Size()
	return packing{
		put: func(p *packer, at unsafe.Pointer) {
			h := (*[]byte)(at) // only its length and data
			p.buf = binary.AppendVarint(p.buf, int64(len(*h)))
			for i := range len(*h) {
				of.put(p, unsafe.Add(unsafe.Pointer(unsafe.SliceData(*h)), uintptr(i)*size))
			}
		},
		get: func(p *packer, at unsafe.Pointer) {
			n := int(p.int())
			if n == 0 {
				return
			}
			v := reflect.NewAt(t, at).Elem()
			v.Set(reflect.MakeSlice(t, n, n))
			for i := range n {
				of.get(p, unsafe.Add(v.UnsafePointer(), uintptr(i)*size))
			}
		},
		zero: noLength,
	}
}

// packMap is for maps with string keys.
func packMap(t reflect.Type) packing {
	of, elem := packingOf(t.Elem()), t.Elem()
	return packing{
		put: func(p *packer, at unsafe.Pointer) {
			v := reflect.NewAt(t, at).Elem()
			if p.buf = binary.AppendVarint(p.buf, int64(v.Len())); v.Len() == 0 {
				return
			}
			for _, k := range sortedKeys(v) {
				key, c := k.String(), reflect.New(elem)
				c.Elem().Set(v.MapIndex(k))
				ofString.put(p, unsafe.Pointer(&key))
				of.put(p, c.UnsafePointer())
			}
		},
		get: func(p *packer, at unsafe.Pointer) {
			n := p.int()
			if n == 0 {
				return
			}
			v := reflect.NewAt(t, at).Elem()
			v.Set(reflect.MakeMap(t))
			for range n {
				var key string
				c := reflect.New(elem)
				ofString.get(p, unsafe.Pointer(&key))
				of.get(p, c.UnsafePointer())
				v.SetMapIndex(reflect.ValueOf(key), c.Elem())
			}
		},
		zero: func(at unsafe.Pointer) bool { return reflect.NewAt(t, at).Elem().Len() == 0 },
	}
}
