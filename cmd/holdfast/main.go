// Command holdfast runs commands under locks that live in the database you
// already run, and shows, breaks and checks those locks.
//
//	holdfast run nightly -- ./backup.sh
package main

import "github.com/holdfast-lock/holdfast/cmd/holdfast/internal/command"

func main() { command.Main(nil) }
