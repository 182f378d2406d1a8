package admin

import (
	"os"
	"testing"

	"github.com/holdfast-lock/holdfast/cassandra"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/directory"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/mysql"
	"github.com/holdfast-lock/holdfast/postgres"
	"github.com/holdfast-lock/holdfast/sqlite"
)

// What is opened by a URL is what the command opens.
func TestMain(m *testing.M) {
	cli.Kinds = []*driver.Kind{sqlite.Kind, directory.Kind, postgres.Kind, mysql.Kind, cassandra.Kind, memory.Kind}
	cli.Others = cli.Programs
	os.Exit(m.Run())
}
