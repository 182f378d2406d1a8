package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
)

// What docs/go.md shows.

// Hold a lock for as long as the work takes.
func ExampleClient_Acquire() {
	_, client := open()
	defer client.Close()
	work := func(ctx context.Context) error {
		fmt.Println("working:", ctx.Err())
		return nil
	}
	err := func(ctx context.Context) error {
		lock, err := client.Acquire(ctx, "deploy", holdfast.Reason("release 42")) // ctx bounds the wait
		if err != nil {
			return err
		}
		defer lock.Release(ctx)     // is sent even when ctx is done
		return work(lock.Context()) // ends when the lock is lost; context.Cause says why
	}(context.Background())
	fmt.Println(err)
	// Output:
	// working: <nil>
	// <nil>
}

// Do not wait: skip the work if somebody is at it.
func ExampleClient_TryAcquire() {
	store, client := open()
	defer client.Close()
	other, _ := holdfast.New(store, &holdfast.Options{Owner: holdfast.Owner{Host: "db1", User: "ana", PID: 4711}})
	defer other.Close()
	other.Acquire(context.Background(), "deploy")

	err := func(ctx context.Context) error {
		lock, err := client.TryAcquire(ctx, "deploy")
		var held *holdfast.HeldError
		if errors.As(err, &held) {
			for _, holder := range held.Holders {
				fmt.Println("skipped, it is with", holder.Owner)
			}
			return nil
		}
		if err != nil {
			return err
		}
		defer lock.Release(ctx)
		return deploy(lock.Context())
	}(context.Background())
	fmt.Println(err)
	// Output:
	// skipped, it is with ana@db1 (pid 4711)
	// <nil>
}

func deploy(ctx context.Context) error { return ctx.Err() }

// Lead, and stand again after a loss.
func ExampleClient_Election() {
	_, client := open()
	defer client.Close()
	schedule := func(_ context.Context, term int64) error {
		fmt.Println("leading:", term > 0)
		return nil
	}
	err := func(ctx context.Context) error {
		return client.Election("scheduler").Run(ctx, func(ctx context.Context, lock *holdfast.Lock) error {
			return schedule(ctx, lock.Token()) // the token is the term
		})
	}(context.Background())
	fmt.Println(err)
	// Output:
	// leading: true
	// <nil>
}

// Say what a lock is for, and how far the work has come.
func ExampleLock_SetLabels() {
	_, client := open()
	defer client.Close()
	err := func(ctx context.Context) error {
		lock, err := client.Acquire(ctx, "deploy", holdfast.Labels(map[string]string{"build": "42"}))
		if err != nil {
			return err
		}
		defer lock.Release(ctx)
		return lock.SetLabels(map[string]string{"build": "42", "step": "2 of 3"}) // no write: the next heartbeat has them
	}(context.Background())
	fmt.Println(err)
	// Output: <nil>
}

// The forms of a request.
func ExampleOption() {
	_, client := open()
	defer client.Close()
	err := func(ctx context.Context) error {
		reader, err := client.Acquire(ctx, "prices", holdfast.Shared())
		if err != nil {
			return err
		}
		defer reader.Release(ctx)
		slot, err := client.Acquire(ctx, "slow-api", holdfast.Slots(3), holdfast.MaxWait(time.Minute))
		if err != nil {
			return err
		}
		defer slot.Release(ctx)
		both, err := client.AcquireAll(ctx, []string{"account/7", "account/3"}) // all or none, no deadlock
		if err != nil {
			return err
		}
		return both.Release(ctx)
	}(context.Background())
	fmt.Println(err)
	// Output: <nil>
}

// Follow the log, the metrics and the labels of a client.
func ExampleOptions() {
	store := memory.New()
	var waited time.Duration
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	client, err := func() (*holdfast.Client, error) {
		return holdfast.New(store, &holdfast.Options{
			Logger: logger, // late heartbeats, losses, suspicions; nil: silence
			Owner:  holdfast.Owner{Name: "worker-7", Labels: map[string]string{"version": "1.4.2"}},
			Trace: &holdfast.Trace{ // called inline: do not block, do not call the client
				Acquired: func(_ context.Context, e holdfast.Event) { waited += e.Waited },
				Released: func(_ context.Context, e holdfast.Event) {
					fmt.Println(e.Name, "given back:", e.Held < time.Hour)
				},
			},
		})
	}()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx := context.Background()
	lock, err := client.Acquire(ctx, "nightly")
	if err != nil {
		fmt.Println(err)
		return
	}
	info, err := client.Show(ctx, "nightly")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(info.Holders[0].Owner.Name)
	lock.Release(ctx)
	// Output:
	// worker-7
	// nightly given back: true
}

// A program's own test of what it does when its lock is lost, on a clock that
// testing/synctest turns.
func TestWorkEndsWithTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		client, err := holdfast.New(store, &holdfast.Options{RuntimeDir: os.DevNull})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		err = client.Do(t.Context(), "nightly", func(ctx context.Context, lock *holdfast.Lock) error {
			go client.Break(t.Context(), "nightly", lock.Token(), "a test")
			select {
			case <-ctx.Done(): // the work has to end here
				return nil
			case <-time.After(time.Hour): // takes no time: the clock is synctest's
				return errors.New("the lock was broken, and the work went on")
			}
		})
		if !errors.Is(err, holdfast.ErrLost) {
			t.Errorf("Do returned %v, want ErrLost", err)
		}
	})
}
