// Package chaos breaks what locks stand on while processes use them: servers and
// nodes are killed, stopped, cut off, filled up and lied to about the time, and so
// are the processes; answers are thrown away and disks are full. All stores are
// tried, PostgreSQL also behind PgBouncer. Everything is judged by stamps of one
// kernel clock that the processes write themselves, by every write that an SQL
// database saw, and by search: what was held, written and read of each name has to
// be in some order that of a lock and of a register behind a fence.
//
//	go run ./verify chaos --store postgres --minutes 10
//
//	go test ./verify/chaos               a few episodes of each kind
//	go test ./verify/chaos -timeout 90m -v -args -full
//	go test ./verify/chaos -run '^TestCrowd$' -timeout 60m -v -args -full
//
// With -tags faultinject the clocks of the workers are wrong, too, which the first of
// these commands sees to. The last makes ten thousand short histories of one name each. What cannot be had
// without rights (namespaces, a small disk) or is not installed is skipped aloud.
// File servers that lie are those of verify/hostile.
package chaos
