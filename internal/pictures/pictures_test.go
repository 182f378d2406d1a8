package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// The pictures in the repository are what this program draws, and they are well-formed.
func TestPictures(t *testing.T) {
	for name, draw := range pictures {
		want := draw()
		got, err := os.ReadFile(filepath.Join("../../docs/pictures", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what go run ./internal/pictures docs/pictures draws: run it", name)
		}
		d := xml.NewDecoder(bytes.NewReader(got))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}
