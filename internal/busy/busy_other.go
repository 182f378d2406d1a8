//go:build !linux

package busy

// Measure cannot tell here.
func Measure() float64 { return 1 }
