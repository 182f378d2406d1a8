package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
)

// The examples run on the memory store; with any other only its Open differs.
func open() (*memory.Store, *holdfast.Client) {
	store := memory.New()
	client, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	return store, client
}

// Run a function under a lock: its context ends when the lock is lost.
func ExampleClient_Do() {
	_, client := open()
	defer client.Close()

	err := client.Do(context.Background(), "nightly", func(ctx context.Context, lock *holdfast.Lock) error {
		fmt.Println("holding", lock.Name())
		return ctx.Err() // pass ctx on to all that the work does
	})
	fmt.Println(err)
	// Output:
	// holding nightly
	// <nil>
}

// Wait at most so long. The error says who is in the way.
func ExampleClient_Acquire_maxWait() {
	store, client := open()
	defer client.Close()
	other, err := holdfast.New(store, &holdfast.Options{Owner: holdfast.Owner{Host: "db1", User: "ana", PID: 4711}})
	if err != nil {
		log.Fatal(err)
	}
	defer other.Close()
	ctx := context.Background()

	lock, err := other.Acquire(ctx, "nightly", holdfast.Reason("nightly backup"))
	if err != nil {
		log.Fatal(err)
	}
	_, err = client.Acquire(ctx, "nightly", holdfast.MaxWait(10*time.Millisecond))
	var held *holdfast.HeldError
	if errors.As(err, &held) {
		fmt.Println("held by", held.Holders[0].Owner, "for:", held.Holders[0].Reason)
	}

	lock.Release(ctx)
	lock, err = client.Acquire(ctx, "nightly", holdfast.MaxWait(time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Release(ctx)
	fmt.Println("ours now:", lock.Err() == nil)
	// Output:
	// held by ana@db1 (pid 4711) for: nightly backup
	// ours now: true
}

// Any number of readers, or one writer.
func ExampleShared() {
	_, client := open()
	defer client.Close()
	ctx := context.Background()

	one, err := client.Acquire(ctx, "prices", holdfast.Shared())
	if err != nil {
		log.Fatal(err)
	}
	two, err := client.TryAcquire(ctx, "prices", holdfast.Shared())
	fmt.Println("second reader:", err)
	_, err = client.TryAcquire(ctx, "prices")
	fmt.Println("writer held up:", errors.Is(err, holdfast.ErrHeld))

	one.Release(ctx)
	two.Release(ctx)
	writer, err := client.Acquire(ctx, "prices")
	fmt.Println("writer:", err)
	writer.Release(ctx)
	// Output:
	// second reader: <nil>
	// writer held up: true
	// writer: <nil>
}

// At most two at the slow service, over all hosts.
func ExampleSlots() {
	_, client := open()
	defer client.Close()
	ctx := context.Background()

	for i := range 3 {
		_, err := client.TryAcquire(ctx, "slow-api", holdfast.Slots(2))
		fmt.Println(i+1, errors.Is(err, holdfast.ErrHeld))
	}
	// Output:
	// 1 false
	// 2 false
	// 3 true
}

// Several names at once: all or none, without an order to think of.
func ExampleClient_AcquireAll() {
	_, client := open()
	defer client.Close()
	ctx := context.Background()

	locks, err := client.AcquireAll(ctx, []string{"account/7", "account/3"})
	if err != nil {
		log.Fatal(err)
	}
	for _, lock := range locks.Locks() {
		fmt.Println(lock.Name())
	}
	fmt.Println(locks.Release(ctx))
	// Output:
	// account/7
	// account/3
	// <nil>
}

// Stand for election and lead until the work is done.
func ExampleElection_Run() {
	_, client := open()
	defer client.Close()

	seat := client.Election("scheduler")
	err := seat.Run(context.Background(), func(ctx context.Context, lock *holdfast.Lock) error {
		_, leading := seat.HasLock()
		fmt.Println("leading:", leading)
		return nil // done; after a loss Run would stand again
	})
	_, leading := seat.HasLock()
	fmt.Println(err, leading)
	// Output:
	// leading: true
	// <nil> false
}

// Follow who leads.
func ExampleElection_Observe() {
	store, client := open()
	defer client.Close()
	watcher, err := holdfast.New(store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer watcher.Close()

	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	for leader, err := range watcher.Election("scheduler").Observe(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		if leader.Token == 0 {
			fmt.Println("nobody leads")
			go client.Election("scheduler").Run(ctx, nil)
			continue
		}
		fmt.Println("a leader, of term", leader.Token > 0)
		break
	}
	stop()
	// Output:
	// nobody leads
	// a leader, of term true
}

// Hold a lock for a client elsewhere, which has drawn the id.
func ExampleClient_Enter() {
	_, client := open()
	defer client.Close()
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	const id = "5c1f0e6b8a7d4c3f9e2b1a0d7c6f5e4b"
	hold, err := client.Enter(ctx, holdfast.HoldRequest{ID: id, Names: []string{"nightly"}, Wait: true, Client: "ci"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("held:", hold.Held)
	for hold, err := range client.Follow(ctx, "ci", id) { // renews it, until ctx ends
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("still held:", hold.Held)
		break
	}
	err = client.Leave(ctx, "ci", id)
	fmt.Println(err)
	_, err = client.Enter(ctx, holdfast.HoldRequest{ID: id, Names: []string{"nightly"}, Client: "ci"})
	fmt.Println(errors.Is(err, holdfast.ErrLost))
	// Output:
	// held: true
	// still held: true
	// <nil>
	// true
}

// End a lock that is stuck: exactly the one that was seen. Its holder learns of it.
func ExampleClient_Break() {
	store, client := open()
	defer client.Close()
	stuck, err := holdfast.New(store, &holdfast.Options{TTL: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer stuck.Close()
	ctx := context.Background()
	lock, err := stuck.Acquire(ctx, "deploy")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		<-lock.Context().Done() // the holder stops its work,
		lock.Release(ctx)       // and only then the lock goes
	}()

	fmt.Println(client.Break(ctx, "deploy", lock.Token(), "stuck, ticket 815"))
	fmt.Println("lost:", errors.Is(lock.Err(), holdfast.ErrLost))
	info, err := client.Show(ctx, "deploy")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(info.Holders), "holders,", info.Breaks[0].Reason)
	// Output:
	// <nil>
	// lost: true
	// 0 holders, stuck, ticket 815
}

// A resource without transactions keeps the highest tokens it has seen beside
// its data, and turns away who comes with an older one.
func ExampleTokenGate_Admit() {
	var fence holdfast.TokenGate // stored with the data

	fmt.Println(fence.Admit(17, false))
	fmt.Println(fence.Admit(21, false))
	fmt.Println(fence.Admit(17, false)) // woke up late
	// Output:
	// <nil>
	// <nil>
	// token 17 is too old: 21 has been here
}
