package spanner

import (
	"strings"
	"testing"

	"cloud.google.com/go/spanner"
	database "cloud.google.com/go/spanner/admin/database/apiv1"

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
	url := servers.Spanner(t, nil).SpannerDatabase(t)
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

func (r reopened) Reopen(t *testing.T) driver.Store { return open(t, r.url) }

func makeStore(t *testing.T) driver.Store {
	url := fresh(t)
	return reopened{open(t, url), url}
}

func TestStore(t *testing.T) { drivertest.Run(t, makeStore) }

func TestClients(t *testing.T) { clienttest.Run(t, makeStore) }
