package directory

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-lock/holdfast/driver"
)

// A key has a directory of its own, named after a hash of its name, and in it
// the marker of its newest version, an empty file:
//
//	names/<hash>/version-1795226403001234-<nonce>
//	names/<hash>/version-1795226403001234-<nonce>-free   it holds nothing
//	names/<hash>/swept-1795226403001234-<nonce>          it is being removed
//
// Version 0 is that of a key that was never written. Beside the directories of
// the keys are the records, a line of JSON and then the value:
//
//	names/record-<nonce>

// keyDir is the directory of a key.
func keyDir(k driver.Key) string { return spaces[k.Space] + "/" + hashed(k.Name) }

func hashed(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

func isHash(name string) bool {
	b, err := hex.DecodeString(name)
	return err == nil && len(b) == sha256.Size
}

// A marker is the name that a version has.
type marker struct {
	version int64
	nonce   string
	free    bool
}

func (m marker) String() string {
	s := "version-" + strconv.FormatInt(m.version, 10) + "-" + m.nonce
	if m.free {
		s += "-free"
	}
	return s
}

func (m marker) swept() string { return "swept-" + strconv.FormatInt(m.version, 10) + "-" + m.nonce }

// parseMarker parses the name of a version.
func parseMarker(name string) (m marker, ok bool) {
	rest, ok := strings.CutPrefix(name, "version-")
	if !ok {
		return m, false
	}
	digits, rest, _ := strings.Cut(rest, "-")
	m.nonce, m.free = strings.CutSuffix(rest, "-free")
	var err error
	m.version, err = strconv.ParseInt(digits, 10, 64)
	return m, err == nil && m.version >= 0 && m.String() == name && m.nonce != "" && !strings.Contains(m.nonce, "-")
}

// A header is the first line of a record.
type header struct {
	Name     string `json:"name,omitempty"`
	Hex      string `json:"name_hex,omitempty"` // of a name that is no text
	Follows  int64  `json:"follows"`            // version
	Previous string `json:"previous"`           // nonce of that version
	Size     int    `json:"size"`
	Sum      string `json:"crc32c"`
}

func checksum(value []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(value, crc32.MakeTable(crc32.Castagnoli)))
}

func (h *header) setName(name string) {
	if utf8.ValidString(name) {
		h.Name = name
	} else {
		h.Hex = hex.EncodeToString([]byte(name))
	}
}

func (h header) name() string {
	if h.Hex != "" {
		b, _ := hex.DecodeString(h.Hex)
		return string(b)
	}
	return h.Name
}

func encodeRecord(h header, value []byte) ([]byte, error) {
	h.Size, h.Sum = len(value), checksum(value)
	line, err := json.Marshal(h)
	return append(append(line, '\n'), value...), err
}

// decodeRecord takes a record apart. It refuses one that is not whole.
func decodeRecord(text []byte) (h header, value []byte, err error) {
	line, value, found := bytes.Cut(text, []byte{'\n'})
	if !found {
		return h, nil, fmt.Errorf("it has no first line")
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return h, nil, err
	}
	if len(value) != h.Size || checksum(value) != h.Sum {
		return h, nil, fmt.Errorf("its value is not what was written")
	}
	return h, value, nil
}
