//go:build !unix

package directory

import "testing"

func plant(t *testing.T, _ string) { t.Skip("there are no pipes with a name here") }
