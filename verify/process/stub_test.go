//go:build linux

package process

func crash(args []string) error { return nil }
