package open_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/directory"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/open"
)

// A program takes its store from a setting, and has the clients of the databases that it
// names, and no others.
func Example() {
	ctx := context.Background()
	store, close, err := open.Open(ctx, "memory:", directory.Kind, memory.Kind)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer close()
	client, err := holdfast.New(store, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	fmt.Println(client.Do(ctx, "nightly", func(context.Context, *holdfast.Lock) error { return nil }))
	_, _, err = open.Open(ctx, "redis://db", directory.Kind, memory.Kind)
	fmt.Println(err)
	// Output:
	// <nil>
	// unknown store "redis": one of dir:PATH, memory:
}

// A URL that cannot be used is a *driver.URLError, and a store that cannot be opened an
// *open.Error. Neither text has a password.
func TestErrors(t *testing.T) {
	odd := &driver.Kind{Name: "odd", Schemes: []string{"odd"}, Form: "odd://…", Example: "odd://db", Server: true, Secrets: []string{"ODD_PASSWORD"},
		Open: func(_ context.Context, at *driver.Location) (driver.Store, func() error, error) {
			return nil, nil, fmt.Errorf("odd: hunter2 and hunter3 are refused at odd://%s:%s@db", at.User, at.Password)
		}}
	t.Setenv("ODD_PASSWORD", "hunter3")
	for in, want := range map[string]string{
		"":                        "a store is written SCHEME:…: one of odd://…, dir:PATH",
		"9odd://db":               "a store is written SCHEME:…",
		"even://app:hunter2@db":   `unknown store "even": one of odd://…, dir:PATH`,
		"odd:db":                  "written as in odd://db",
		"odd://app:hun@ter2@db":   "write %40 for @",
		"dir:":                    "needs a path",
		"dir:/no/such/directory?": "cannot use the store dir:/no/such/directory: ",
		"odd://app:hunter2@db":    "cannot use the store odd://app@db: *** and *** are refused at odd://app@db",
	} {
		_, _, err := open.Open(t.Context(), in, odd, directory.Kind)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: got %v, want %s", in, err, want)
		}
		var bad *driver.URLError
		var unusable *open.Error
		if errors.As(err, &unusable) == errors.As(err, &bad) {
			t.Errorf("%s: %T", in, err)
		}
	}
}

// Reach of the kind comes first, then the types of errors that all kinds share.
func TestReach(t *testing.T) {
	mine := errors.New("mine")
	k := &driver.Kind{Reach: func(err error) driver.Reach {
		if errors.Is(err, mine) {
			return driver.Answered
		}
		return driver.Unknown
	}}
	for _, test := range []struct {
		err  error
		want driver.Reach
	}{
		{mine, driver.Answered},
		{fmt.Errorf("call: %w", context.DeadlineExceeded), driver.Unreachable},
		{errors.Join(mine, context.DeadlineExceeded), driver.Answered},
		{errors.New("odd"), driver.Unknown},
	} {
		if got := k.ReachOf(test.err); got != test.want {
			t.Errorf("%v: %d, want %d", test.err, got, test.want)
		}
	}
	if got := memory.Kind.ReachOf(mine); got != driver.Unknown {
		t.Errorf("of a kind that knows nothing: %d", got)
	}
}
