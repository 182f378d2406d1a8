package otel_test

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/monitor"
	"github.com/holdfast-lock/holdfast/otel"
)

// What is recorded is what was done: the instruments of package monitor, and a span of the lock that
// was waited for, under the caller's.
func TestRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, spans := metric.NewManualReader(), tracetest.NewSpanRecorder()
		meter := metric.NewMeterProvider(metric.WithReader(reader)).Meter("holdfast")
		tracer := trace.NewTracerProvider(trace.WithSpanProcessor(spans)).Tracer("holdfast")
		recorded, err := otel.New(&otel.Options{Meter: meter, Tracer: tracer})
		if err != nil {
			t.Fatal(err)
		}
		store := memory.New()
		newClient := func(tr *holdfast.Trace) *holdfast.Client {
			c, err := holdfast.New(store, &holdfast.Options{RuntimeDir: os.DevNull, Trace: tr})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		c, other := newClient(recorded), newClient(nil)
		for range 5 {
			l, err := c.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			l.Release(t.Context())
		}
		taken, err := other.Acquire(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		ctx, parent := tracer.Start(t.Context(), "request")
		got := make(chan *holdfast.Lock)
		go func() { l, _ := c.Acquire(ctx, "b"); got <- l }()
		time.Sleep(3 * time.Second)
		taken.Release(t.Context())
		held := <-got
		parent.End()
		var all metricdata.ResourceMetrics
		if err := reader.Collect(context.Background(), &all); err != nil {
			t.Fatal(err)
		}
		sums, counts := map[string]int64{}, map[string]uint64{}
		gauges := map[string]bool{}
		for _, m := range all.ScopeMetrics[0].Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					sums[m.Name] += p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					counts[m.Name] += p.Count
				}
			case metricdata.Gauge[float64]:
				gauges[m.Name] = true
			}
		}
		if n := counts[monitor.LockWait.Name]; n != 6 {
			t.Errorf("%d requests, want 6", n)
		}
		if n := counts[monitor.LockHold.Name]; n != 5 {
			t.Errorf("%d holds, want 5", n)
		}
		if h, w := sums[monitor.LockHeld.Name], sums[monitor.Waiting.Name]; h != 1 || w != 0 {
			t.Errorf("%d held, %d waiting, want 1 and 0", h, w)
		}
		if !gauges[monitor.Window.Name] {
			t.Error("the trust window is not observed")
		}
		ended := spans.Ended()
		if len(ended) != 2 || ended[0].Name() != "holdfast.acquire" || ended[0].Parent().SpanID() != parent.SpanContext().SpanID() {
			t.Fatalf("spans %v, want one of the lock that was waited for, below the request's", ended)
		}
		if d := ended[0].EndTime().Sub(ended[0].StartTime()); d < 3*time.Second || d > 4*time.Second {
			t.Errorf("the span lasts %v, want 3 s", d)
		}
		held.Release(t.Context())
		c.Close()
		other.Close()
	})
}
