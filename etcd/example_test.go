package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/etcd"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

// The examples need a cluster: TestExamples runs them on one.

// Locks in a cluster that the application has anyway.
func ExampleNew() {
	err := func(ctx context.Context) error {
		conn, err := clientv3.New(clientv3.Config{ // it stays yours
			Endpoints:   strings.Split(os.Getenv("ETCD_ENDPOINTS"), ","),
			DialTimeout: 2 * time.Second,
		})
		if err != nil {
			return err
		}
		defer conn.Close()
		store, err := etcd.New(ctx, conn, nil)
		if err != nil {
			return err
		}
		client, err := holdfast.New(store, nil)
		if err != nil {
			return err
		}
		defer client.Close()
		return client.Do(ctx, "nightly", func(ctx context.Context, lock *holdfast.Lock) error {
			fmt.Println("holding", lock.Name())
			_, err := etcd.Fence(ctx, []*holdfast.Lock{lock}, // ErrLost: nothing was done
				clientv3.OpPut("accounts/ana", "90"))
			return err // pass ctx on to all that the work does
		})
	}(context.Background())
	fmt.Println(err)
}

// A transaction of the caller's own that depends on a lock, and on something else.
func ExampleCompare() {
	ctx := context.Background()
	conn, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(os.Getenv("ETCD_ENDPOINTS"), ",")})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	store, err := etcd.New(ctx, conn, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := holdfast.New(store, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	withdraw := func(lock *holdfast.Lock) error {
		for range 10 { // others who come to wait change the record: ask again
			held, keep, err := etcd.Compare(ctx, lock)
			if err != nil {
				return err // ErrLost: stop
			}
			resp, err := conn.Txn(ctx).
				If(append(held, clientv3.Compare(clientv3.Value("accounts/ana"), "=", "90"))...).
				Then(append(keep, clientv3.OpPut("accounts/ana", "80"))...).
				Commit()
			if err != nil || resp.Succeeded {
				return err
			}
		}
		return errors.New("accounts/ana does not hold 90")
	}
	lock, err := client.Acquire(ctx, "accounts/ana")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held:", withdraw(lock))
	lock.Release(ctx)
	fmt.Println("released:", errors.Is(withdraw(lock), holdfast.ErrReleased))
}

// TestExamples runs the examples on an etcd.
func TestExamples(t *testing.T) {
	t.Setenv("ETCD_ENDPOINTS", strings.Join(servers.EtcdThree(t, nil).Endpoints(), ","))
	for _, e := range []struct {
		run  func()
		want string
	}{
		{ExampleNew, "holding nightly\n<nil>\n"},
		{ExampleCompare, "held: <nil>\nreleased: true\n"},
	} {
		if got := printed(t, e.run); got != e.want {
			t.Errorf("got %q, want %q", got, e.want)
		}
	}
}

// printed is what f writes to standard output.
func printed(t *testing.T, f func()) string {
	t.Helper()
	old := os.Stdout
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	os.Stdout = file
	defer func() { os.Stdout = old }()
	f()
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
