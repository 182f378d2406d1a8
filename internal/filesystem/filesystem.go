// Package filesystem tells what kind of file system a path is on: one whose
// locks and changes this kernel alone decides and sees, or one that other hosts
// share.
package filesystem
