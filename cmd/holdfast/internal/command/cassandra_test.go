//go:build linux

package command

import (
	"context"
	"crypto/rand"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocql "github.com/apache/cassandra-gocql-driver/v2"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/holdfast-lock/holdfast/cassandra"
	"github.com/holdfast-lock/holdfast/claims"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

// What is different with Cassandra; what is not is in TestScript.
func TestScriptCassandra(t *testing.T) {
	t.Parallel()
	store := servers.Cassandra(t, nil).Database(t)
	u, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	few := "hf_" + strings.ToLower(rand.Text()[:12])
	session := cassandraSession(t, store)
	cql := func(text string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := session.Query(text).ExecContext(ctx); err != nil {
			t.Error(err)
		}
	}
	cql("create keyspace " + few + " with replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
	t.Cleanup(func() { cql("drop keyspace " + few) })
	claimed(t, session, strings.Trim(u.Path, "/"))
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("../../testdata", "cassandra"),
		Setup: func(e *testscript.Env) error {
			for _, dir := range []string{"state", "run"} {
				if err := os.Mkdir(filepath.Join(e.WorkDir, dir), 0o700); err != nil {
					return err
				}
			}
			for name, value := range map[string]string{
				"HOLDFAST_STORE": store, "KEYSPACE": strings.Trim(u.Path, "/"), "FEW": strings.TrimSuffix(store, u.Path) + "/" + few,
				"DC": session.GetHosts()[0].DataCenter(), "GORACE": os.Getenv("GORACE"), "USER": "ana", "LOGNAME": "ana",
				"XDG_STATE_HOME": filepath.Join(e.WorkDir, "state"), "XDG_RUNTIME_DIR": filepath.Join(e.WorkDir, "run"),
			} {
				e.Setenv(name, value)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"eventually": eventually, "status": status, "token": token},
	})
}

// claimed makes the table claims_lock_ in a keyspace, in which a process holds a lock until the
// test has ended.
func claimed(t *testing.T, session *gocql.Session, keyspace string) {
	t.Helper()
	const table = "claims_lock_"
	if err := cassandra.MigrateColumns(t.Context(), session, keyspace, table); err != nil {
		t.Fatal(err)
	}
	columns, err := cassandra.NewColumns(t.Context(), session, keyspace, table)
	if err != nil {
		t.Fatal(err)
	}
	locker, err := claims.New(columns, &claims.Options{Name: "billing-1", Wait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locker.Close(context.Background()) })
	if _, err := locker.Acquire(t.Context(), []byte{0, 0xff}, []byte("column")); err != nil {
		t.Fatal(err)
	}
}

func cassandraSession(t *testing.T, store string) *gocql.Session {
	t.Helper()
	target, err := cli.ParseStore(store)
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := target.Hosts("9042")
	if err != nil {
		t.Fatal(err)
	}
	session, err := gocql.NewCluster(hosts...).CreateSession()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Close)
	return session
}
