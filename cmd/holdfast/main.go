// Command holdfast runs commands under locks that live in the database you
// already run, and shows, breaks and checks those locks.
//
//	holdfast run nightly -- ./backup.sh
package main

import (
	"context"

	"github.com/holdfast-lock/holdfast/cassandra"
	"github.com/holdfast-lock/holdfast/claims"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/admin"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/command"
	"github.com/holdfast-lock/holdfast/directory"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/mysql"
	"github.com/holdfast-lock/holdfast/postgres"
	"github.com/holdfast-lock/holdfast/sqlite"
)

func main() {
	admin.ClaimTable = func(ctx context.Context, at *driver.Location, table string) (claims.Table, func() error, error) {
		return cassandra.OpenColumns(ctx, at, table)
	}
	command.Main([]*driver.Kind{sqlite.Kind, directory.Kind, postgres.Kind, mysql.Kind, cassandra.Kind, memory.Kind}, cli.Programs...)
}
