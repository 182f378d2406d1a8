// Command holdfast-etcd is holdfast with a client for etcd. It is not called by name:
// holdfast becomes it when the store is in an etcd.
package main

import (
	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/command"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/etcd"
)

func main() { command.Main([]*driver.Kind{etcd.Kind}) }
