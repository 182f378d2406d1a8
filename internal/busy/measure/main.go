// Measure prints by how much tests should stretch their leases on this machine now.
package main

import (
	"fmt"

	"github.com/holdfast-lock/holdfast/internal/busy"
)

func main() { fmt.Println(busy.Stretch()) }
