package otel_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/wire"
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
		if !gauges[monitor.Window.Name] || !gauges[monitor.TTL.Name] {
			t.Error("the trust window, or its TTL, is not observed")
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

// Workers do what is drawn and count it themselves, a holder dies, and one process leads: the numbers
// of the monitor are those of the workers, and those of OpenTelemetry the same, label for label.
func TestScriptedLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := metric.NewManualReader()
		recorded, err := otel.New(&otel.Options{Meter: metric.NewMeterProvider(metric.WithReader(reader)).Meter("holdfast")})
		if err != nil {
			t.Fatal(err)
		}
		m, store := monitor.New(nil), memory.New()
		newClient := func(s driver.Store, tr *holdfast.Trace) *holdfast.Client {
			c, err := holdfast.New(s, &holdfast.Options{RuntimeDir: os.DevNull, Trace: tr})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		c := newClient(store, m.Trace().And(recorded))
		defer c.Close()
		other := newClient(store, nil)
		defer other.Close()
		way := &wire.Cut{Store: store}
		dies := newClient(way, nil)
		defer dies.Close()
		if _, err := dies.Acquire(t.Context(), "dead"); err != nil {
			t.Fatal(err)
		}
		way.Off.Store(true)

		did := map[string]float64{} // by instrument and label
		var mu sync.Mutex
		count := func(what string) { mu.Lock(); defer mu.Unlock(); did[what]++ }
		var workers sync.WaitGroup
		for n := range 12 {
			workers.Go(func() {
				who, rng := c, rand.New(rand.NewPCG(1, uint64(n)))
				if n%3 == 0 {
					who = other // whose work is not measured
				}
				note := func(what string) {
					if who == c {
						count(what)
					}
				}
				for range 100 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.Int64N(int64(time.Second))))
					name := fmt.Sprint("n", rng.IntN(3))
					var l *holdfast.Lock
					var err error
					switch rng.IntN(3) {
					case 0:
						l, err = who.TryAcquire(t.Context(), name)
					case 1:
						l, err = who.Acquire(ctx, name, holdfast.Shared())
					default:
						l, err = who.Acquire(ctx, name)
					}
					switch {
					case errors.Is(err, context.DeadlineExceeded):
						note("wait canceled")
					case errors.Is(err, holdfast.ErrHeld):
						note("wait held")
					case err != nil:
						t.Error(err)
					default:
						note("wait acquired")
						time.Sleep(time.Duration(rng.Int64N(int64(100 * time.Millisecond))))
						if err := l.Release(t.Context()); err != nil {
							t.Error(err)
						}
						note("hold released")
					}
					cancel()
				}
			})
		}
		l, err := c.Acquire(t.Context(), "dead")
		if err != nil {
			t.Fatal(err)
		}
		count("wait acquired")
		workers.Wait()
		ctx, resign := context.WithCancel(t.Context())
		over := make(chan error, 1)
		e := c.Election("scheduler")
		go func() { over <- e.Run(ctx, nil) }()
		synctest.Wait()
		did["wait acquired"]++
		value := func(i monitor.Instrument, labels ...string) (sum float64) {
			for _, s := range m.Samples(i) {
				all := true
				for n := 0; n < len(labels); n += 2 {
					at := slices.Index(s.Labels, labels[n])
					all = all && at >= 0 && s.Labels[at+1] == labels[n+1]
				}
				switch {
				case !all:
				case i.Kind == monitor.Histogram:
					sum += float64(s.Count)
				default:
					sum += s.Value
				}
			}
			return sum
		}
		check := func(what string, got, want float64) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		for _, outcome := range []string{"acquired", "held", "canceled"} {
			if did["wait "+outcome] == 0 {
				t.Errorf("no request was %s", outcome)
			}
			check(outcome, value(monitor.LockWait, "outcome", outcome), did["wait "+outcome])
		}
		check("released", value(monitor.LockHold, "end", "released"), did["hold released"])
		check("held", value(monitor.LockHeld), 2)
		check("waiting", value(monitor.Waiting), 0)
		check("declared dead", value(monitor.Dead), 1)
		check("taken over", value(monitor.TookOver), 1)
		check("leading", value(monitor.Leading, "name", "scheduler"), 1)
		resign()
		<-over
		check("leading no more", value(monitor.Leading, "name", "scheduler"), 0)
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
		check("held at the end", value(monitor.LockHeld), 0)

		var all metricdata.ResourceMetrics
		if err := reader.Collect(context.Background(), &all); err != nil {
			t.Fatal(err)
		}
		recordedBy := map[string]map[string]float64{}
		note := func(instrument string, a attribute.Set, v float64) {
			if recordedBy[instrument] == nil {
				recordedBy[instrument] = map[string]float64{}
			}
			var pairs []string
			for _, kv := range a.ToSlice() {
				pairs = append(pairs, string(kv.Key)+"="+kv.Value.String())
			}
			recordedBy[instrument][strings.Join(pairs, ",")] += v
		}
		for _, one := range all.ScopeMetrics[0].Metrics {
			switch d := one.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					note(one.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					note(one.Name, p.Attributes, float64(p.Count))
				}
			}
		}
		for _, i := range monitor.Instruments {
			if i.Name == monitor.Window.Name || i.Name == monitor.TTL.Name {
				continue
			}
			for _, s := range m.Samples(i) {
				var pairs []string
				for n := 0; n < len(s.Labels); n += 2 {
					pairs = append(pairs, s.Labels[n]+"="+s.Labels[n+1])
				}
				slices.Sort(pairs)
				labels := strings.Join(pairs, ",")
				want := s.Value
				if i.Kind == monitor.Histogram {
					want = float64(s.Count)
				}
				if got, ok := recordedBy[i.Name][labels]; !ok || got != want {
					t.Errorf("%s{%s}: OpenTelemetry has %v, want %v", i.Name, labels, got, want)
				}
			}
		}
	})
}
