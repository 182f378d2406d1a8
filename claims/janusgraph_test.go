package claims_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/claims"
)

// What docs/migrate/janusgraph.md shows.

// The keys and columns that JanusGraph 1.1.0 itself computed (IDManager.getKey, IDHandler.
// getRelationType), of vertices and of property keys.
func TestJanusGraphBytes(t *testing.T) {
	for _, v := range []struct {
		id         uint64
		partitions int
		key        string
	}{
		{256, 32, "0000000000000008"}, {4096, 32, "0000000000000080"}, {4152, 32, "3800000000000080"}, {4280, 32, "b800000000000080"},
		{40964200, 32, "6800000000138880"}, {31604937984, 32, "000000003ade68a8"}, {4280, 16, "7000000000000108"},
		{40964200, 16, "d000000000271100"}, {8, 1, "0000000000000008"}, {987654312, 1, "000000003ade68a8"},
	} {
		if got := hex.EncodeToString(claims.VertexKey(v.id, v.partitions)); got != v.key {
			t.Errorf("vertex %d of %d partitions has the key %s, want %s", v.id, v.partitions, got, v.key)
		}
	}
	for id, want := range map[uint64]string{69: "42", 133: "44", 197: "46", 645: "5094", 6405: "51c8", 64005: "5fd0", 453: "4e", 517: "5090", 581: "5092", 65477: "5ffe", 65541: "501080", 65605: "501082", 7901189: "5f0980", 6400000005: "505f2f0480"} {
		if got := hex.EncodeToString(claims.PropertyColumn(id)); got != want {
			t.Errorf("property key %d has the column %s, want %s", id, got, want)
		}
	}
}

// Lock a property of a vertex as JanusGraph does.
func ExampleLocker_Acquire_janusGraph() {
	open := claims.NewTable()
	var columns claims.Columns = open() // cassandra.NewColumns(ctx, session, "janusgraph", "edgestore_lock_")
	err := func(ctx context.Context) error {
		locker, err := claims.New(columns, &claims.Options{
			Name:   "billing-1",
			Wait:   100 * time.Millisecond, // storage.lock.wait-time
			Expire: 5 * time.Minute,        // storage.lock.expiry-time
		})
		if err != nil {
			return err
		}
		defer locker.Close(ctx)
		// mgmt.getPropertyKey('balance').id() is 645, g.V().has('name', 'ana').id() 4152.
		lock, err := locker.Acquire(ctx, claims.VertexKey(4152, 32), claims.PropertyColumn(645))
		if err != nil {
			return err
		}
		defer lock.Release(ctx)
		return pay(lock.Context()) // no transaction of JanusGraph changes that balance meanwhile
	}(context.Background())
	fmt.Println(err)
	// Output: paid
	// <nil>
}

func pay(ctx context.Context) error {
	fmt.Println("paid")
	return ctx.Err()
}
