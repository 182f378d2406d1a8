package sqlite

import (
	"context"
	"database/sql"
	"testing"

	"github.com/holdfast-lock/holdfast/clienttest"
	"github.com/holdfast-lock/holdfast/driver"
)

// Nothing that a client bounds takes longer because somebody else writes to the file
// without end.
func TestBounds(t *testing.T) {
	t.Parallel()
	clienttest.RunBounds(t, func(t *testing.T) driver.Store { return reopener{fresh(t)} },
		clienttest.Obstacle{Name: "a transaction without end", Silent: true, Begin: func(t *testing.T, s driver.Store, _ string) func() {
			db, err := sql.Open("sqlite", "file:"+s.(reopener).path+"?_busy_timeout=5000")
			if err != nil {
				t.Fatal(err)
			}
			conn, err := db.Conn(t.Context())
			if err == nil {
				_, err = conn.ExecContext(t.Context(), "begin immediate")
			}
			if err != nil {
				t.Fatal(err)
			}
			return func() {
				if _, err := conn.ExecContext(context.Background(), "rollback"); err != nil {
					t.Error(err)
				}
				conn.Close()
				db.Close()
			}
		}})
}
