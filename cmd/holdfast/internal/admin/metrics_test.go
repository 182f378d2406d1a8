//go:build linux

package admin

import (
	"fmt"
	"testing"
)

// The label of a lock in the metrics is that of the longest prefix, and what is no PREFIX=LABEL is
// refused.
func TestMetricsNames(t *testing.T) {
	named, err := metricsNames([]string{"deploy/=deploy", "deploy/shop/=shop", "a=b=c"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"deploy/shop/1": "shop", "deploy/x": "deploy", "nightly": "other", "a": "b=c"} {
		if got := named(name); got != want {
			t.Errorf("%s has the label %s, want %s", name, got, want)
		}
	}
	if named, err := metricsNames(nil); named != nil || err != nil {
		t.Error("there is a label although none was asked for")
	}
	many := make([]string, mostMetricsNames+1)
	for i := range many {
		many[i] = fmt.Sprintf("%d=x", i)
	}
	for _, bad := range [][]string{{"deploy"}, {"deploy="}, {"a=\n"}, {"a=1", "a=2"}, many} {
		if _, err := metricsNames(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
