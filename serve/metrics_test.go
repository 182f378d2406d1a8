package serve

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/monitor"
	"github.com/holdfast-lock/holdfast/serve/access"
)

// The metrics say what is in the store and what was asked for, to those who may read them, and no
// name of a lock is in them.
func TestMetrics(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		prom := &access.Principal{Name: "prom", Verbs: access.Metrics}
		a.do(&access.Principal{Name: "x", Verbs: access.Look, Prefixes: []string{""}}, "GET", "/metrics", "").want(t, 403)
		for i := range 60 {
			a.do(all, "PUT", "/v1/holds/"+id(100+i), fmt.Sprintf(`{"name":"team%02d/secret","ttl":60}`, i)).want(t, 200)
		}
		a.do(all, "PUT", "/v1/holds/"+id(1), `{"name":"nightly-secret","ttl":60}`).want(t, 200)
		a.do(all, "PUT", "/v1/holds/"+id(2), `{"name":"nightly-secret"}`).want(t, 409)
		time.Sleep(10 * time.Second)
		got := a.do(prom, "GET", "/metrics", "").want(t, 200)
		if got.header.Get("Content-Type") != monitor.TextType {
			t.Errorf("Content-Type %q", got.header.Get("Content-Type"))
		}
		for _, line := range []string{`holdfast_store_up 1`, `holdfast_store_held{prefix=""} 1`, `holdfast_store_held{prefix="team07"} 1`,
			`holdfast_store_held{prefix="other"} 11`, `holdfast_store_beat_oldest_seconds{prefix=""} 10`,
			`http_server_request_duration_seconds_count{route="/v1/holds/{id}",method="PUT",status="409"} 1`,
			`http_server_request_duration_seconds_count{route="/v1/holds/{id}",method="PUT",status="200"} 61`} {
			if !strings.Contains(got.text, "\n"+line+"\n") {
				t.Errorf("no line %s in\n%s", line, got.text)
			}
		}
		if strings.Contains(got.text, "secret") {
			t.Error("the name of a lock is in the metrics")
		}
		if n := strings.Count(got.text, "holdfast_store_held{"); n != mostPrefixes+1 {
			t.Errorf("%d prefixes, want %d and the rest", n, mostPrefixes)
		}
	})
}

// A store with many locks takes its time to be counted: meanwhile a scrape gets what was counted
// before, and the store is there. One that gives nothing any more is not.
func TestMetricsOfManyLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5000
		slow := &slowList{Store: memory.New()}
		newClient := func(s driver.Store) *holdfast.Client {
			c, err := holdfast.New(s, &holdfast.Options{RuntimeDir: os.DevNull})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		holder, looker := newClient(slow.Store), newClient(slow)
		defer holder.Close()
		defer looker.Close()
		for i := range n {
			if _, err := holder.TryAcquire(t.Context(), fmt.Sprintf("orders/%d", i)); err != nil {
				t.Fatal(err)
			}
		}
		h := New(looker, nil)
		defer h.Close()
		scrape := func() string {
			r := httptest.NewRequest("GET", "/metrics", nil)
			w := httptest.NewRecorder()
			began := time.Now()
			h.ServeHTTP(w, r.WithContext(access.WithPrincipal(t.Context(), &access.Principal{Name: "prom", Verbs: access.Metrics})))
			if took := time.Since(began); took > storeTimeout {
				t.Errorf("a scrape takes %v", took)
			}
			return w.Body.String()
		}
		is := func(when, text string, lines map[string]bool) {
			t.Helper()
			for line, want := range lines {
				if strings.Contains(text, "\n"+line) != want {
					t.Errorf("%s, %s: %v, want %v\n%s", when, line, !want, want, text)
				}
			}
		}
		const up, down, counted = "holdfast_store_up 1\n", "holdfast_store_up 0\n", `holdfast_store_held{prefix="orders"} 5000` + "\n"
		is("at first", scrape(), map[string]bool{up: true, "holdfast_store_held{": false})
		time.Sleep(time.Minute)
		is("when it was counted", scrape(), map[string]bool{up: true, counted: true})
		slow.hangs.Store(true)
		time.Sleep(time.Hour)
		scrape()
		time.Sleep(time.Second)
		is("when it hangs", scrape(), map[string]bool{up: false, down: true, "holdfast_store_held{": false})
	})
}

// A slowList lists slowly, or not at all.
type slowList struct {
	driver.Store
	hangs atomic.Bool
}

func (s *slowList) Keys(ctx context.Context, space driver.Space, after string, n int) ([]string, error) {
	takes := 2 * time.Second
	if s.hangs.Load() {
		takes = time.Hour
	}
	select {
	case <-time.After(takes):
		return s.Store.Keys(ctx, space, after, n)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Nobody is woken because candidates of an election have waited for long.
func TestMetricsOfElections(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		ctx, cancel := context.WithCancel(t.Context())
		var candidates sync.WaitGroup
		for _, r := range []*replica{a, b} {
			candidates.Go(func() { r.handler.client.Election("ops/leader").Run(ctx, nil) })
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		got := a.do(&access.Principal{Name: "prom", Verbs: access.Metrics}, "GET", "/metrics", "").want(t, 200)
		for _, line := range []string{`holdfast_store_held{prefix="ops"} 1`, `holdfast_store_waiting{prefix="ops"} 1`, `holdfast_store_wait_longest_seconds{prefix="ops"} 0`} {
			if !strings.Contains(got.text, "\n"+line+"\n") {
				t.Errorf("no line %s in\n%s", line, got.text)
			}
		}
		cancel()
		candidates.Wait()
	})
}

// Names are told apart as the user says, and no further.
func TestMetricsNames(t *testing.T) {
	inTime(t, func(t *testing.T, a, _ *replica) {
		a.handler.opts.MetricsLock = func(name string) string {
			if strings.HasPrefix(name, "deploy/shop/") {
				return "shop"
			}
			return "other"
		}
		for i, name := range []string{"deploy/shop/1", "deploy/shop/2", "deploy/bank/1", "nightly"} {
			a.do(all, "PUT", "/v1/holds/"+id(100+i), fmt.Sprintf(`{"name":%q,"ttl":60}`, name)).want(t, 200)
		}
		got := a.do(&access.Principal{Name: "prom", Verbs: access.Metrics}, "GET", "/metrics", "").want(t, 200)
		for _, line := range []string{`holdfast_store_held{prefix="deploy",lock="shop"} 2`, `holdfast_store_held{prefix="deploy",lock="other"} 1`, `holdfast_store_held{prefix="",lock="other"} 1`} {
			if !strings.Contains(got.text, "\n"+line+"\n") {
				t.Errorf("no line %s in\n%s", line, got.text)
			}
		}
	})
}

// The holds that a server keeps are counted while it keeps them, and what clients hear of holds
// that lapsed.
func TestMetricsOfHolds(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		prom := &access.Principal{Name: "prom", Verbs: access.Metrics}
		counts := func(request, waiting, held, died int) {
			t.Helper()
			got := a.do(prom, "GET", "/metrics", "").want(t, 200)
			for _, line := range []string{fmt.Sprintf(`holdfast_serve_holds{kind="request",state="waiting"} %d`, request),
				fmt.Sprintf(`holdfast_serve_holds{kind="connection",state="waiting"} %d`, waiting),
				fmt.Sprintf(`holdfast_serve_holds{kind="connection",state="held"} %d`, held), fmt.Sprintf(`holdfast_serve_lapsed_total %d`, died)} {
				if !strings.Contains(got.text, "\n"+line+"\n") {
					t.Errorf("no line %s in\n%s", line, got.text)
				}
			}
		}
		counts(0, 0, 0, 0)
		first := a.stream(all, "PUT", "/v1/holds/"+id(1), "application/x-ndjson", `{"name":"n"}`)
		first.event(t, "held")
		second := a.stream(all, "PUT", "/v1/holds/"+id(2), "application/x-ndjson", `{"name":"n","wait":600}`)
		second.event(t, "waiting")
		waits := make(chan *answer)
		go func() { waits <- a.do(all, "PUT", "/v1/holds/"+id(3), `{"name":"n","wait":600}`) }()
		b.do(all, "PUT", "/v1/holds/"+id(4), `{"name":"another's"}`).want(t, 200)
		synctest.Wait()
		counts(1, 1, 1, 0)
		first.cancel()
		<-first.done
		second.until(t, "waiting", "held")
		counts(1, 0, 1, 0)
		second.cancel()
		<-second.done
		<-waits
		counts(0, 0, 0, 0)
		b.do(all, "PUT", "/v1/holds/"+id(5), `{"name":"another's","wait":600}`).want(t, 200)
		a.do(all, "POST", "/v1/holds/"+id(4)+"/beat", "").want(t, 410).is(t, "why", "died")
		counts(0, 0, 0, 1)
	})
}

// Each instrument has a row in the documentation.
func TestMetricsTable(t *testing.T) {
	page, err := os.ReadFile("../docs/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range Instruments {
		row := regexp.MustCompile("(?m)^\\| `" + regexp.QuoteMeta(i.Name) + "` \\| `" + regexp.QuoteMeta(i.Prometheus()) + "` \\| " + string(i.Kind))
		if !row.Match(page) {
			t.Errorf("docs/monitoring.md has no row of %s, %s, %s", i.Name, i.Prometheus(), i.Kind)
		}
	}
}

// The alerts and the dashboard ask for what is exported, and each alert can be driven into alarm.
func TestAlerts(t *testing.T) {
	exported := map[string]bool{}
	for _, i := range Instruments {
		for _, end := range []string{"", "_bucket", "_sum", "_count"} {
			exported[i.Prometheus()+end] = true
		}
	}
	for _, file := range []string{"alerts.yml", "alerts_test.yml", "dashboard.json"} {
		text, err := os.ReadFile("../deploy/prometheus/" + file)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`\b(holdfast|http_server)_[a-z_]+`).FindAllString(string(text), -1)
		if len(names) == 0 {
			t.Errorf("%s asks for nothing", file)
		}
		for _, name := range names {
			if !exported[name] {
				t.Errorf("%s asks for %s, which is not exported", file, name)
			}
		}
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool here: the alerts are not driven into alarm")
	}
	for _, args := range [][]string{{"test", "rules", "alerts_test.yml"}, {"check", "config", "--syntax-only", "prometheus.yml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = "../deploy/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}
