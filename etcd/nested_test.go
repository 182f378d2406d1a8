package etcd

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/servers"
)

// Two stores whose keys would be among each other's, where one takes the locks of the
// other for sessions or names of its own, are not both opened, whichever is first.
func TestNestedPrefixes(t *testing.T) {
	c := connect(t)
	for _, test := range []struct{ outer, inner string }{
		{"", "n/"}, {"", "s/"}, {"", "c/"}, {"", "a/"}, {"", "w/"}, {"", "f/"}, {"", "n/more/"}, {"", "s/n/"}, {"", "n/x"}, {"app", "s/"},
	} {
		for _, first := range []string{"outer", "inner"} {
			if test.inner == "f/" && first == "inner" {
				continue // it looks like a number of ours, and nobody comes across it by chance
			}
			t.Run(test.outer+strings.ReplaceAll(test.inner, "/", "-")+" "+first, func(t *testing.T) {
				outer := fresh(t, c) + test.outer
				inner := outer + test.inner
				prefixes := map[string]string{"outer": outer, "inner": inner}
				s := open(t, c, prefixes[first])
				acquire(t, client(t, s), "a job") // so that there are keys
				delete(prefixes, first)
				for _, other := range prefixes {
					_, err := New(t.Context(), c, &Options{Prefix: other})
					want := fmt.Sprintf("etcd: prefix %q is among the keys of prefix %q, which is in use: each would take the other's locks for its own. Choose another", inner, outer)
					if err == nil || err.Error() != want {
						t.Fatalf("got %v, want %s", err, want)
					}
					// It has left nothing there.
					if r, err := c.Get(t.Context(), other+"epoch"); err != nil || len(r.Kvs) > 0 {
						t.Errorf("its epoch: %v, error %v", r, err)
					}
				}
				if _, err := New(t.Context(), c, &Options{Prefix: s.prefix}); err != nil {
					t.Errorf("who was first: %v", err)
				}
			})
		}
	}
	for _, other := range []string{"b/", "x", "nn/", "epoch", "swept/", "q/n/"} {
		prefix := fresh(t, c)
		open(t, c, prefix)
		if _, err := New(t.Context(), c, &Options{Prefix: prefix + other}); err != nil {
			t.Errorf("prefix %q: %v", other, err)
		}
	}
}

// Whose epoch was deleted, after a backup was restored, finds its own keys and takes
// none for another's.
func TestOwnKeysAreNotNested(t *testing.T) {
	c := connect(t)
	prefix := fresh(t, c)
	s := open(t, c, prefix)
	for _, n := range []string{"epoch", "n/epoch", "my epoch", "s/n/epoch"} {
		l := acquire(t, client(t, s), n)
		if _, err := c.Put(t.Context(), s.fenceKey(n), fmt.Sprint(l.Token())); err != nil { // as a fence of what was handed on
			t.Fatal(err)
		}
	}
	if _, err := c.Delete(t.Context(), s.epochKey()); err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), c, &Options{Prefix: prefix}); err != nil {
		t.Error(err)
	}
}

// A role for the keys of its prefix alone, which may not see whether a shorter prefix is
// in use, may lock, and the doctor says what it cannot see.
func TestRoleCannotSeeOuter(t *testing.T) {
	t.Parallel()
	server := servers.Etcd(t, &servers.Options{})
	admin := dial(t, []string{server.URL})
	ctx := t.Context()
	for _, err := range []error{
		second(admin.UserAdd(ctx, "root", "r00t")), second(admin.RoleAdd(ctx, "root")), second(admin.UserGrantRole(ctx, "root", "root")),
		second(admin.RoleAdd(ctx, "locks")), second(admin.UserAdd(ctx, "app", "hunter2")), second(admin.UserGrantRole(ctx, "app", "locks")),
		second(admin.RoleGrantPermission(ctx, "locks", "locks/", clientv3.GetPrefixRangeEnd("locks/"), clientv3.PermissionType(clientv3.PermReadWrite))),
		second(admin.AuthEnable(ctx)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{server.URL}, DialTimeout: 10 * time.Second, Logger: zap.NewNop(), Username: "app", Password: "hunter2"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := open(t, c, "locks/")
	acquire(t, client(t, s), "a")
	list, err := s.Diagnose(ctx)
	want := driver.Finding{Level: driver.Warning, Subject: "prefix", Text: `whether prefix "lock" is in use as well, among whose keys ours would be, cannot be seen by this user`}
	if err != nil || !slices.Contains(list, want) {
		t.Errorf("the doctor says %+v, error %v, want %+v", list, err, want)
	}
}

// A user who may read the keys of a prefix, and nothing else, looks.
func TestReadRole(t *testing.T) {
	t.Parallel()
	server := servers.Etcd(t, &servers.Options{})
	admin := dial(t, []string{server.URL})
	ctx := t.Context()
	for _, err := range []error{
		second(admin.UserAdd(ctx, "root", "r00t")), second(admin.RoleAdd(ctx, "root")), second(admin.UserGrantRole(ctx, "root", "root")),
		second(admin.RoleAdd(ctx, "look")), second(admin.UserAdd(ctx, "dba", "hunter2")), second(admin.UserGrantRole(ctx, "dba", "look")),
		second(admin.RoleGrantPermission(ctx, "look", "locks/", clientv3.GetPrefixRangeEnd("locks/"), clientv3.PermissionType(clientv3.PermRead))),
		second(admin.AuthEnable(ctx)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	as := func(user, password string) *clientv3.Client {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{server.URL}, DialTimeout: 10 * time.Second, Logger: zap.NewNop(), Username: user, Password: password})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	dba := as("dba", "hunter2")
	if _, err := New(ctx, dba, &Options{Prefix: "locks/"}); !errors.Is(err, rpctypes.ErrPermissionDenied) {
		t.Errorf("New of a user who may only read: %v", err)
	}
	s, err := New(ctx, dba, &Options{Prefix: "locks/", ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	looker, err := holdfast.New(s, &holdfast.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer looker.Close()
	if info, err := looker.Show(ctx, "a"); err != nil || len(info.Holders) != 0 {
		t.Errorf("before anybody has used the prefix: %+v, error %v", info, err)
	}
	acquire(t, client(t, open(t, as("root", "r00t"), "locks/")), "a")
	n := 0
	for info, err := range looker.List(ctx, "") {
		if n++; err != nil || info.Name != "a" || len(info.Holders) != 1 || info.Holders[0].Owner.Host == "" {
			t.Errorf("list: %+v, error %v", info, err)
		}
	}
	if n != 1 {
		t.Errorf("%d names are listed, want one", n)
	}
	list, err := s.Diagnose(ctx)
	if err != nil {
		t.Error(err)
	}
	for _, f := range list {
		if f.Level == driver.Failure {
			t.Errorf("the doctor says %+v", f)
		}
	}
}

func second[T any](_ T, err error) error { return err }
