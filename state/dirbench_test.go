package state

import (
	"os"
	"path/filepath"
	"testing"
)

// What Key costs on files: it is to be at most twice a bare read of the two.
func BenchmarkKey(b *testing.B) {
	path := b.TempDir()
	s := openDir(b, path, nil)
	if err := begin(b, s).End(b.Context()); err != nil { // makes pending
		b.Fatal(err)
	}
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			if _, err := os.ReadDir(filepath.Join(path, "state/pending")); err != nil {
				b.Fatal(err)
			}
			if _, err := os.ReadFile(filepath.Join(path, "state/key")); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("key", func(b *testing.B) {
		for b.Loop() {
			anyKey(b, s)
		}
	})
	w := begin(b, s)
	b.Run("writing", func(b *testing.B) {
		for b.Loop() {
			anyKey(b, s)
		}
	})
	if err := w.End(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// What a write costs, beside what the seed has a writer do, and with that made
// durable.
func BenchmarkWrite(b *testing.B) {
	path := b.TempDir()
	s := openDir(b, path, nil)
	if err := begin(b, s).End(b.Context()); err != nil {
		b.Fatal(err)
	}
	bare := func(sync bool) func(b *testing.B) {
		return func(b *testing.B) {
			file := func(name, text string) {
				f, err := os.Create(name)
				if err != nil {
					b.Fatal(err)
				}
				defer f.Close()
				f.WriteString(text)
				if sync {
					f.Sync()
				}
			}
			dir := func(name string) {
				if f, err := os.Open(name); sync && err == nil {
					f.Sync()
					f.Close()
				}
			}
			st := filepath.Join(path, "state")
			for b.Loop() {
				file(st+"/pending/x", "")
				dir(st + "/pending")
				file(st+"/new", "0123456789abcdef")
				if err := os.Rename(st+"/new", st+"/key"); err != nil {
					b.Fatal(err)
				}
				dir(st)
				os.Remove(st + "/pending/x")
			}
		}
	}
	b.Run("bare", bare(false))
	b.Run("bare, synced", bare(true))
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			if err := begin(b, s).End(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
