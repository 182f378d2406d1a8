// Package filesystem tells what kind of file system a path is on: one whose locks and
// changes this kernel alone decides and sees, or one that other hosts share. It also has
// what the operating systems tell about files without opening them, since a process that
// closes a file gives up all its locks on it.
package filesystem
