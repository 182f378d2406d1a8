package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"path/filepath"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/internal/filesystem"
)

var _ holdfast.Diagnoser = (*Store)(nil)

// Diagnose implements holdfast.Diagnoser.
func (s *Store) Diagnose(ctx context.Context) (findings []holdfast.Finding, err error) {
	say := func(level holdfast.Level, subject, format string, args ...any) {
		findings = append(findings, holdfast.Finding{Level: level, Subject: subject, Text: fmt.Sprintf(format, args...)})
	}
	if err := s.present(); err != nil {
		return nil, err
	}
	var version, mode string
	err = s.reads.useOr(ctx, s.names, func(c *conn) error {
		return retry(ctx, func() error {
			err := c.query(`select sqlite_version()`, func(row []driver.Value) { version = text(row[0]) })
			if err != nil {
				return err
			}
			return c.query(`pragma journal_mode`, func(row []driver.Value) { mode = text(row[0]) })
		})
	})
	if err != nil {
		return nil, s.explain(err)
	}
	if mode == "wal" {
		say(holdfast.Good, "database", "SQLite %s, journal mode wal", version)
	} else {
		say(holdfast.Failure, "database", "journal mode is %s, though it was wal: end all who use the file, and open it again", mode)
	}
	if s.async {
		say(holdfast.Warning, "durability", "async-commit is accepted: after a power cut a token may repeat")
	} else {
		say(holdfast.Good, "durability", "synchronous is full for each grant: it is on disk before it is told")
	}
	dir := filepath.Dir(s.path)
	if name := filesystem.Network(dir); name != "" {
		say(holdfast.Warning, "file system", "%s: network-fs is accepted; if its locks fail, so do ours", name)
	}
	if diskFull(dir) {
		say(holdfast.Failure, "disk", "the disk of %s is full: nobody can take or give back a lock", dir)
	}
	return findings, nil
}
