package stores

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"strings"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	hfspanner "github.com/holdfast-lock/holdfast/spanner"
)

// databaseOf connects to spanner://projects/P/instances/I/databases/D, in the emulator
// that SPANNER_EMULATOR_HOST says.
func databaseOf(ctx context.Context, target string) (*spanner.Client, error) {
	return spanner.NewClientWithConfig(ctx, strings.TrimPrefix(target, "spanner://"),
		spanner.ClientConfig{DisableNativeMetrics: true, Logger: log.New(io.Discard, "", 0)})
}

func openSpanner(ctx context.Context, target string) (*Store, error) {
	c, err := databaseOf(ctx, target)
	if err != nil {
		return nil, err
	}
	s, err := hfspanner.New(ctx, c, nil)
	if err != nil {
		c.Close()
		return nil, err
	}
	return &Store{Store: s, Registers: inSpanner{s, c}, Native: true, close: func() error { c.Close(); return nil }}, nil
}

type inSpanner struct {
	s      *hfspanner.Store
	client *spanner.Client
}

func (r inSpanner) Make(ctx context.Context, names ...string) error {
	admin, err := database.NewDatabaseAdminClient(ctx)
	if err != nil {
		return err
	}
	defer admin.Close()
	op, err := admin.UpdateDatabaseDdl(ctx, &databasepb.UpdateDatabaseDdlRequest{Database: r.client.DatabaseName(),
		Statements: []string{`CREATE TABLE IF NOT EXISTS registers (name STRING(100) NOT NULL, value STRING(MAX) NOT NULL) PRIMARY KEY (name)`}})
	if err == nil {
		err = op.Wait(ctx)
	}
	if err != nil {
		return err
	}
	var all []*spanner.Mutation
	for _, name := range names {
		all = append(all, spanner.InsertOrUpdate("registers", []string{"name", "value"}, []any{name, "{}"}))
	}
	_, err = r.client.Apply(ctx, all)
	return err
}

// Put is as that of etcd.
func (r inSpanner) Put(ctx context.Context, lock *holdfast.Lock, value int64) (Verdict, error) {
	_, err := r.client.ReadWriteTransaction(ctx, func(ctx context.Context, txn *spanner.ReadWriteTransaction) error {
		g := guarded{Value: value}
		if !r.Strict(lock) {
			if err := hfspanner.Fence(ctx, txn, lock); err != nil {
				return err
			}
		} else {
			row, err := txn.ReadRow(ctx, "registers", spanner.Key{lock.Name()}, []string{"value"})
			if err != nil {
				return err
			}
			if g, err = guardedIn(row); err != nil {
				return err
			}
			if err := g.put(lock, value); err != nil {
				return err
			}
		}
		text, err := json.Marshal(g)
		if err != nil {
			return err
		}
		return txn.BufferWrite([]*spanner.Mutation{spanner.Update("registers", []string{"name", "value"}, []any{lock.Name(), string(text)})})
	})
	switch {
	case err == nil:
		return Taken, nil
	case errors.Is(err, holdfast.ErrLost):
		return Refused, err
	}
	return Ambiguous, err
}

func guardedIn(row *spanner.Row) (g guarded, err error) {
	var text string
	if err := row.Column(0, &text); err != nil {
		return g, err
	}
	return g, json.Unmarshal([]byte(text), &g)
}

func (r inSpanner) Get(ctx context.Context, name string) (int64, error) {
	row, err := r.client.Single().ReadRow(ctx, "registers", spanner.Key{name}, []string{"value"})
	if err != nil {
		return 0, err
	}
	g, err := guardedIn(row)
	return g.Value, err
}

func (r inSpanner) Strict(lock *holdfast.Lock) bool { return lock.Store() != driver.Store(r.s) }
