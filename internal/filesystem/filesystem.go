// Package filesystem tells what kind of file system a path is on: one whose
// locks and changes this kernel alone decides and sees, or one that other hosts
// share. It also has what the operating systems tell of files without opening them, since
// whoever closes one gives up all locks that the process has on it.
package filesystem
