package prometheus_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"net/http/httptest"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/monitor"
	"github.com/holdfast-lock/holdfast/prometheus"
)

// The registry exports, line for line, what the monitor writes itself.
func TestSame(t *testing.T) {
	m := monitor.New(&monitor.Options{Lock: func(name string) string { return name }})
	c, err := holdfast.New(memory.New(), &holdfast.Options{RuntimeDir: os.DevNull, Trace: m.Trace()})
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.Acquire(t.Context(), `a"b\c`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.TryAcquire(t.Context(), `a"b\c`); err == nil {
		t.Fatal("acquired twice")
	}
	l.Release(t.Context())
	c.Close()
	registry := client.NewPedanticRegistry()
	registry.MustRegister(prometheus.New(m))
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	var own strings.Builder
	if _, err := m.WriteTo(&own); err != nil {
		t.Fatal(err)
	}
	got, want := series(w.Body.String()), series(own.String())
	if len(want) < 50 || !slices.Equal(got, want) {
		t.Errorf("exported:\n%s\n\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// series are the lines of a text, with their labels in one order, and without the window, which
// gets shorter.
func series(text string) (lines []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || strings.Contains(line, "window") {
			continue
		}
		if name, rest, ok := strings.Cut(line, "{"); ok {
			labels, value, _ := strings.Cut(rest, "} ")
			parts := strings.Split(labels, ",")
			slices.Sort(parts)
			line = name + "{" + strings.Join(parts, ",") + "} " + value
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}
