//go:build !linux

package sim_test

import "syscall"

func dieWithUs() *syscall.SysProcAttr { return nil }
