// Command holdfast-etcd is holdfast with a client for etcd. It is not called by name:
// holdfast becomes it when the store is in an etcd.
package main

import (
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/command"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/engine"
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/etcd"
)

func main() { command.Main(map[string]engine.Engine{"etcd": etcd.Engine}) }
