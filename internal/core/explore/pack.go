package explore

import (
	"encoding/binary"
	"errors"
	"fmt"
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
	buf      []byte // being written or read
	room     []byte
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

// pack appends a world to buf. Most of it is zeros: of each run only the length is kept.
func (p *packer) pack(buf []byte, w *World) []byte {
	p.buf = p.room[:0]
	worldPacking.put(p, unsafe.Pointer(w))
	p.room = p.buf
	for i := 0; i < len(p.buf); i++ {
		if buf = append(buf, p.buf[i]); p.buf[i] == 0 {
			n := 1
			for n < 255 && i+n < len(p.buf) && p.buf[i+n] == 0 {
				n++
			}
			buf = append(buf, byte(n))
			i += n - 1
		}
	}
	return buf
}

// unpack restores a packed world.
func (p *packer) unpack(packed []byte) *World {
	p.buf = p.room[:0]
	for i := 0; i < len(packed); i++ {
		if packed[i] != 0 {
			p.buf = append(p.buf, packed[i])
			continue
		}
		i++
		for range packed[i] {
			p.buf = append(p.buf, 0)
		}
	}
	w := &World{}
	p.room, p.client = p.buf, -1
	worldPacking.get(p, unsafe.Pointer(w))
	return w
}

// A packing writes and reads values of one type.
type packing struct {
	put func(p *packer, at unsafe.Pointer)
	get func(p *packer, at unsafe.Pointer) // into a zero value
}

var (
	packings     = map[reflect.Type]*packing{}
	worldPacking = packingOf(reflect.TypeFor[World]())
	errNoAnswer  = errors.New("no answer")
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
		*c = packing{func(*packer, unsafe.Pointer) {}, func(*packer, unsafe.Pointer) {}} // a buffer; never set; no hold is followed
		return c
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
			func(p *packer, at unsafe.Pointer) { p.buf = append(p.buf, *(*byte)(at)) },
			func(p *packer, at unsafe.Pointer) { *(*byte)(at), p.buf = p.buf[0], p.buf[1:] },
		}
	case reflect.Int, reflect.Int64:
		*c = packing{
			func(p *packer, at unsafe.Pointer) { p.buf = binary.AppendVarint(p.buf, *(*int64)(at)) },
			func(p *packer, at unsafe.Pointer) { *(*int64)(at) = p.int() },
		}
	}
	if c.put == nil || t.Kind() == reflect.Interface && t != reflect.TypeFor[error]() {
		panic(fmt.Sprintf("a %s cannot be packed", t))
	}
	return c
}

// Most instants are Never, or a whole number of quarters of a tick.
var ofInstant = packing{
	func(p *packer, at unsafe.Pointer) {
		switch t := *(*lease.Instant)(at); {
		case t == lease.Never:
			p.buf = append(p.buf, 0)
		case t%(tick/4) == 0:
			p.buf = binary.AppendVarint(append(p.buf, 1), int64(t/(tick/4)))
		default:
			p.buf = binary.AppendVarint(append(p.buf, 2), int64(t))
		}
	},
	func(p *packer, at unsafe.Pointer) {
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
}

var ofRequest = packing{
	func(p *packer, at unsafe.Pointer) {
		n := int64(-1)
		if r := *(**core.Request)(at); r != nil {
			n = 2*int64(r.Tag.(int)) + int64(bit(r.Try))
		}
		p.buf = binary.AppendVarint(p.buf, n)
	},
	func(p *packer, at unsafe.Pointer) {
		if n := p.int(); n >= 0 {
			*(**core.Request)(at) = p.requests[p.client][n]
		}
	},
}

// ofError keeps whether there is an error: nobody asks which one it is.
var ofError = packing{
	func(p *packer, at unsafe.Pointer) { p.buf = append(p.buf, bit(*(*error)(at) != nil)) },
	func(p *packer, at unsafe.Pointer) {
		if p.buf[0] != 0 {
			*(*error)(at) = errNoAnswer
		}
		p.buf = p.buf[1:]
	},
}

var ofString = packing{
	func(p *packer, at unsafe.Pointer) {
		s := *(*string)(at)
		p.buf = append(binary.AppendVarint(p.buf, int64(len(s))), s...)
	},
	func(p *packer, at unsafe.Pointer) {
		n := p.int()
		s, ok := p.texts[string(p.buf[:n])]
		if !ok {
			s = string(p.buf[:n])
			p.texts[s] = s
		}
		*(*string)(at), p.buf = s, p.buf[n:]
	},
}

func packStruct(t reflect.Type) packing {
	type field struct {
		at uintptr
		of *packing
	}
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		fields = append(fields, field{f.Offset, packingOf(f.Type)})
	}
	isClient := t == reflect.TypeFor[client]()
	return packing{
		func(p *packer, at unsafe.Pointer) {
			for _, f := range fields {
				f.of.put(p, unsafe.Add(at, f.at))
			}
		},
		func(p *packer, at unsafe.Pointer) {
			if isClient {
				p.client++
			}
			for _, f := range fields {
				f.of.get(p, unsafe.Add(at, f.at))
			}
		},
	}
}

func packPointer(t reflect.Type) packing {
	of, elem := packingOf(t.Elem()), t.Elem()
	return packing{
		func(p *packer, at unsafe.Pointer) {
			q := *(*unsafe.Pointer)(at)
			if p.buf = append(p.buf, bit(q != nil)); q != nil {
				of.put(p, q)
			}
		},
		func(p *packer, at unsafe.Pointer) {
			is := p.buf[0] != 0
			if p.buf = p.buf[1:]; is {
				q := reflect.New(elem).UnsafePointer()
				*(*unsafe.Pointer)(at) = q
				of.get(p, q)
			}
		},
	}
}

func packSlice(t reflect.Type) packing {
	of, size := packingOf(t.Elem()), t.Elem().Size()
	return packing{
		func(p *packer, at unsafe.Pointer) {
			h := (*[]byte)(at) // only its length and data
			p.buf = binary.AppendVarint(p.buf, int64(len(*h)))
			for i := range len(*h) {
				of.put(p, unsafe.Add(unsafe.Pointer(unsafe.SliceData(*h)), uintptr(i)*size))
			}
		},
		func(p *packer, at unsafe.Pointer) {
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
	}
}

// packMap is for maps with string keys.
func packMap(t reflect.Type) packing {
	of, elem := packingOf(t.Elem()), t.Elem()
	return packing{
		func(p *packer, at unsafe.Pointer) {
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
		func(p *packer, at unsafe.Pointer) {
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
	}
}
