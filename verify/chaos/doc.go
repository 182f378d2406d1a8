// Package chaos breaks what locks on PostgreSQL, MariaDB and Cassandra stand on
// while processes use them: servers and nodes are killed, stopped, cut off, filled
// up and lied to about the time, and so are the processes. Everything is judged by
// stamps of one kernel clock that the processes write themselves, and by every
// write that an SQL database saw.
//
//	go test ./verify/chaos               a few episodes of each kind
//	go test ./verify/chaos -timeout 40m -v -args -full
//
// What cannot be had without rights (namespaces, a small disk) or is not
// installed is skipped aloud.
package chaos
