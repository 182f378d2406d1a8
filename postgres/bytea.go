package postgres

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"
)

// bytea reads bytes in whatever form the server sends them. Where statements are not
// prepared they come as text, in the role's bytea_output: hex or escape. A write whose
// answer could not be read would be a lock that nobody knows of.
type bytea []byte

var (
	_ pgtype.BytesScanner = (*bytea)(nil)
	_ pgtype.TextScanner  = (*bytea)(nil)
)

// ScanBytes implements pgtype.BytesScanner.
func (b *bytea) ScanBytes(v []byte) error {
	*b = append(bytea(nil), v...)
	return nil
}

// ScanText implements pgtype.TextScanner.
func (b *bytea) ScanText(v pgtype.Text) (err error) {
	digits, isHex := strings.CutPrefix(v.String, `\x`)
	switch {
	case !v.Valid:
		*b = nil
	case isHex:
		*b, err = hex.DecodeString(digits)
	default:
		*b, err = unescape(v.String)
	}
	return err
}

// unescape reads the older form, in which a byte may be \ooo and a backslash is \\.
func unescape(s string) (b []byte, err error) {
	for {
		before, after, found := strings.Cut(s, `\`)
		b = append(b, before...)
		switch {
		case !found:
			return b, nil
		case strings.HasPrefix(after, `\`):
			b, s = append(b, '\\'), after[1:]
		default:
			n, err := strconv.ParseUint(after[:min(3, len(after))], 8, 8)
			if err != nil || len(after) < 3 {
				return nil, fmt.Errorf("%q are no bytes of PostgreSQL", s)
			}
			b, s = append(b, byte(n)), after[3:]
		}
	}
}
