package sqlite

import (
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/storetest"
)

func TestClients(t *testing.T) {
	storetest.RunClients(t, func(t *testing.T) holdfast.Store { return reopener{fresh(t)} })
}
