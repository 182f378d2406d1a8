package claims

import (
	"encoding/binary"
	"math/bits"
)

// VertexKey is the key that JanusGraph locks for a vertex, in edgestore_lock_: its id,
// with the partition moved to the front. id is a number that JanusGraph gave;
// partitions is cluster.max-partitions, 32 unless it was set.
func VertexKey(id uint64, partitions int) []byte {
	n := bits.Len(uint(partitions - 1)) // bits of the partition, above the 3 bits of the type
	partition, count := id>>3&(1<<n-1), id>>(3+n)
	key := count<<3 | id&7
	if n > 0 {
		key |= partition << (64 - n)
	}
	return binary.BigEndian.AppendUint64(nil, key)
}

// PropertyColumn is the column that JanusGraph locks for a property of a vertex with
// the cardinality SINGLE. propertyKey is the id of its key, as returned by
// mgmt.getPropertyKey('name').id(). The id is written in groups of 4, 7, 7… bits,
// behind three bits that say that it is a user's property.
func PropertyColumn(propertyKey uint64) []byte {
	const (
		property = 0x40 // in the first byte
		more     = 0x10 // in the first byte: more bytes follow
		last     = 0x80 // in another byte: it is the last
	)
	v := propertyKey >> 6 << 1
	if v < 1<<4 {
		return []byte{property | byte(v)}
	}
	column := []byte{last | byte(v&0x7f)}
	for v >>= 7; v >= 1<<4; v >>= 7 {
		column = append([]byte{byte(v & 0x7f)}, column...)
	}
	return append([]byte{property | more | byte(v)}, column...)
}
