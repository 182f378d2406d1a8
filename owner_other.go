//go:build !linux

package holdfast

func terminal() string { return "" }
