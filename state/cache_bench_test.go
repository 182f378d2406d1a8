//go:build linux || darwin

package state

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A hit of a blob beside reading a plain file with the same bytes.
func BenchmarkHit(b *testing.B) {
	for name, size := range map[string]int{"1KiB": 1 << 10, "1MiB": 1 << 20, "16MiB": 16 << 20} {
		text := strings.Repeat("x", size)
		file := filepath.Join(b.TempDir(), "plain")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
		buf := make([]byte, 128<<10)
		b.Run(name+"/cat", func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				f, err := os.Open(file)
				if err != nil {
					b.Fatal(err)
				}
				io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, buf)
				f.Close()
			}
		})
		b.Run(name+"/ReadFile", func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				os.ReadFile(file)
			}
		})
		c := newCache(b, nil)
		s := &State{newFake("repo")}
		get(b, c, s, "refs", says(text))
		b.Run(name+"/hit", func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				r, err := c.Get(b.Context(), s, "refs", not(b))
				if err != nil {
					b.Fatal(err)
				}
				io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, buf)
				r.Close()
			}
		})
	}
}
