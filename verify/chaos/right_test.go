//go:build linux && !faultinject

package chaos

const bends = false
