package sqlite

import (
	"context"
	sqldriver "database/sql/driver"
	"os"
	"path/filepath"
	"slices"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/filesystem"
)

var _ driver.Diagnoser = (*Store)(nil)

// Diagnose implements driver.Diagnoser.
func (s *Store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	var r driver.Findings
	var version sqldriver.Value
	var triggers []string
	err := s.ask(ctx, s.reads.UseIdle, func(c *conn) (err error) {
		triggers = triggers[:0]
		if version, err = c.one(`select sqlite_version()`); err != nil {
			return err
		}
		return c.query(`select name from sqlite_master where type = 'trigger' and tbl_name like 'holdfast!_%' escape '!' and name <> 'holdfast_fence_insert'`,
			func(row []sqldriver.Value) { triggers = append(triggers, text(row[0])) })
	})
	if err != nil {
		return nil, err
	}
	r.Say(driver.Good, "database", "SQLite %s, journal mode wal", version)
	for _, name := range triggers {
		r.Say(driver.Warning, "trigger", "%s runs with each write of a lock; what it changes or refuses there, nobody holds", name)
	}
	if info, err := os.Stat(s.path); err == nil {
		if err := oneName(s.path, info); err != nil {
			r.Say(driver.Failure, "name", "%v", err)
		}
	}
	if s.async {
		r.Say(driver.Warning, "durability", "async-commit is accepted: after a power cut a token may repeat")
	} else {
		r.Say(driver.Good, "durability", "synchronous is full for each grant: it is on disk before it is reported")
	}
	dir := filepath.Dir(resolved(s.path))
	if name := filesystem.Network(dir); name != "" {
		r.Say(driver.Warning, "file system", "%s: network-fs is accepted; if its locks fail, so do ours", name)
	}
	if filesystem.Overlay(dir) {
		r.Say(driver.Warning, "file system", "%s is seen through an overlay: the host and other containers have files of their own in its place, and could be given a lock that is held here; mount one directory into all that share locks", s.path)
	}
	if filesystem.Volatile(dir) {
		r.Say(driver.Warning, "file system", "%s is in memory: after a restart of this host all is gone, and a token may repeat", s.path)
	}
	for _, option := range filesystem.Options(dir) {
		if slices.Contains([]string{"nobarrier", "barrier=0", "volatile"}, option) {
			r.Say(driver.Warning, "file system", "it is mounted with %s: a power cut may undo a grant, and a token may repeat", option)
		}
	}
	if filesystem.Full(dir) {
		r.Say(driver.Failure, "disk", "the disk of %s is full: nobody can take or give back a lock", dir)
	}
	return r, nil
}
