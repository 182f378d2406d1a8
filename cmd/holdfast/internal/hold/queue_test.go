package hold

import (
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
)

// stderrOf is what f writes to standard error.
func stderrOf(t *testing.T, f func()) string {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	before := os.Stderr
	os.Stderr = file
	defer func() { os.Stderr = before }()
	f()
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Whoever has just been granted a lock is not told that it waits for itself.
func TestQueueAtHandOff(t *testing.T) {
	var told string
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		client := func() *holdfast.Client {
			c, err := holdfast.New(store, &holdfast.Options{RuntimeDir: os.DevNull})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		holder, waiter := client(), client()
		defer holder.Close()
		defer waiter.Close()
		l, err := holder.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		told = stderrOf(t, func() {
			q := newQueue([]string{"a"}, false)
			q.terminal = false
			q.watch(waiter)
			time.AfterFunc(5*time.Second, func() { l.Release(t.Context()) })
			mine, err := waiter.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second) // before it is noticed
			q.stop()
			q.done([]*holdfast.Lock{mine})
			mine.Release(t.Context())
		})
	})
	if strings.Count(told, "waiting for") != 1 || !strings.Contains(told, `holding "a" after `) {
		t.Errorf("told:\n%s", told)
	}
}
