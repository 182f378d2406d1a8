package spanner

import (
	"context"
	"strings"
	"testing"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"
	"cloud.google.com/go/spanner/admin/database/apiv1/databasepb"
	"google.golang.org/grpc/codes"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

// dial makes a client of a database in an emulator, and returns its admin's.
func dial(t testing.TB, url string) (*spanner.Client, *database.DatabaseAdminClient) {
	t.Helper()
	c, err := spanner.NewClientWithConfig(t.Context(), strings.TrimPrefix(url, "spanner://"), spanner.ClientConfig{DisableNativeMetrics: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	admin, err := database.NewDatabaseAdminClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { admin.Close() })
	return c, admin
}

// fresh is a database with the table, and nothing in it, in the emulator that tests
// share.
func fresh(t testing.TB) string {
	t.Helper()
	url := servers.Spanner(t, nil).Database(t)
	c, admin := dial(t, url)
	if err := Migrate(t.Context(), admin, c, nil); err != nil {
		t.Fatal(err)
	}
	return url
}

func open(t testing.TB, url string) *Store {
	t.Helper()
	c, _ := dial(t, url)
	s, err := New(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// reopened is a store that tests open twice, as two processes would.
type reopened struct {
	*Store
	url string
}

func (r reopened) Reopen(t *testing.T) driver.Store { return reopened{open(t, r.url), r.url} }

// Close is what the store's user does, who has made the client.
func (r reopened) Close() error {
	r.client.Close()
	return nil
}

func makeStore(t *testing.T) driver.Store {
	url := fresh(t)
	return reopened{open(t, url), url}
}

func TestStore(t *testing.T) { drivertest.Run(t, makeStore) }

func TestClients(t *testing.T) { clienttest.Run(t, makeStore) }

// ddl changes a database's schema.
func ddl(t *testing.T, admin *database.DatabaseAdminClient, c *spanner.Client, statement string) {
	t.Helper()
	op, err := admin.UpdateDatabaseDdl(t.Context(), &databasepb.UpdateDatabaseDdlRequest{Database: c.DatabaseName(), Statements: []string{statement}})
	if err == nil {
		err = op.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Nobody writes without the lock (P4).
func TestFences(t *testing.T) {
	drivertest.RunFence(t, func(t *testing.T) drivertest.Fenced {
		url := fresh(t)
		s := open(t, url)
		_, admin := dial(t, url)
		ddl(t, admin, s.client, `CREATE TABLE registers (name STRING(100) NOT NULL, value STRING(MAX) NOT NULL) PRIMARY KEY (name)`)
		return drivertest.Fenced{Store: s, Other: open(t, url),
			Put: func(ctx context.Context, value string, fenced func(), locks ...*holdfast.Lock) error {
				_, err := s.transact(ctx, func(ctx context.Context, txn *spanner.ReadWriteTransaction) error { // the emulator drops some
					if err := Fence(ctx, txn, locks...); err != nil {
						return err
					}
					return txn.BufferWrite([]*spanner.Mutation{spanner.InsertOrUpdate("registers", []string{"name", "value"}, []any{locks[0].Name(), value})})
				})
				return err
			},
			Get: func(ctx context.Context, name string) (value string, err error) {
				row, err := s.client.Single().ReadRow(ctx, "registers", spanner.Key{name}, []string{"value"})
				if spanner.ErrCode(err) == codes.NotFound {
					return "", nil
				}
				if err == nil {
					err = row.Column(0, &value)
				}
				return value, err
			}}
	})
}
