// Package process tests the command and the library as what they are used as:
// many processes on one file, which are killed, stopped and lied to. Everything
// is judged by stamps of one kernel clock that the processes write themselves.
//
//	go test ./verify/process              about a minute
//	go test ./verify/process -timeout 20m -args -full  all processes and rounds
//
// What cannot be had without rights (namespaces, a small disk) is skipped aloud.
package process
