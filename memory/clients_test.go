package memory_test

import (
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/storetest"
)

func TestClients(t *testing.T) {
	storetest.RunClientsInBubble(t, func(t *testing.T) holdfast.Store { return twice{memory.New()} })
}
