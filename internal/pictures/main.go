// Pictures draws layers.svg and lease.svg, which the pages show:
//
//	go run ./internal/pictures docs/pictures
//
// Each file has a light and a dark palette; the reader's browser chooses.
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: go run ./internal/pictures DIRECTORY")
	}
	for name, draw := range pictures {
		if err := os.WriteFile(filepath.Join(os.Args[1], name), draw(), 0o644); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Printf("drew %d pictures\n", len(pictures))
}

var pictures = map[string]func() []byte{"layers.svg": layers, "lease.svg": lease}
