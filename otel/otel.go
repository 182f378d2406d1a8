// Package otel records what a client does with OpenTelemetry: the instruments of package monitor,
// and a span for each lock that was waited for. It needs only OpenTelemetry's API; the program
// chooses the exporter.
//
//	trace, err := otel.New(&otel.Options{Meter: provider.Meter("holdfast")})
//	client, err := holdfast.New(store, &holdfast.Options{Trace: trace})
package otel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/monitor"
)

// Options say where to record. The zero value of each field is its default.
type Options struct {
	Meter  metric.Meter // nil: nothing is measured
	Tracer trace.Tracer // nil: there are no spans
	// Lock turns a lock's name into the attribute "lock". nil: there is no such attribute. It must
	// have few values: each is a time series.
	Lock func(name string) string
}

type recorder struct {
	opts                   Options
	wait, hold, beat, call metric.Float64Histogram
	held, waiting, leading metric.Int64UpDownCounter
	lost, broken, refused  metric.Int64Counter
	tookOver               metric.Int64Counter
	suspected, dead        metric.Int64Counter
	windows                *monitor.Monitor // for those of the sessions; nothing else of it is used
}

// New makes the trace of a client. opts may be nil. The error is that of the meter.
func New(opts *Options) (*holdfast.Trace, error) {
	r := &recorder{windows: monitor.New(nil)}
	if opts != nil {
		r.opts = *opts
	}
	if r.opts.Meter == nil {
		r.opts.Meter = metricnoop.NewMeterProvider().Meter("")
	}
	if r.opts.Tracer == nil {
		r.opts.Tracer = tracenoop.NewTracerProvider().Tracer("")
	}
	if err := r.instruments(); err != nil {
		return nil, err
	}
	if r.opts.Lock == nil {
		for _, reason := range monitor.Reasons {
			r.lost.Add(context.Background(), 0, r.with(holdfast.Event{}, "reason", reason))
		}
	}
	return r.trace(), nil
}

func (r *recorder) instruments() (err error) {
	m := r.opts.Meter
	for _, h := range []struct {
		of   monitor.Instrument
		into *metric.Float64Histogram
	}{{monitor.LockWait, &r.wait}, {monitor.LockHold, &r.hold}, {monitor.Beat, &r.beat}, {monitor.Call, &r.call}} {
		if *h.into, err = m.Float64Histogram(h.of.Name, metric.WithUnit(h.of.Unit), metric.WithDescription(h.of.Help), metric.WithExplicitBucketBoundaries(monitor.Buckets...)); err != nil {
			return err
		}
	}
	for _, c := range []struct {
		of   monitor.Instrument
		into *metric.Int64UpDownCounter
	}{{monitor.LockHeld, &r.held}, {monitor.Waiting, &r.waiting}, {monitor.Leading, &r.leading}} {
		if *c.into, err = m.Int64UpDownCounter(c.of.Name, metric.WithUnit(c.of.Unit), metric.WithDescription(c.of.Help)); err != nil {
			return err
		}
	}
	for _, c := range []struct {
		of   monitor.Instrument
		into *metric.Int64Counter
	}{{monitor.LockLost, &r.lost}, {monitor.Broken, &r.broken}, {monitor.TookOver, &r.tookOver}, {monitor.Refused, &r.refused}, {monitor.Suspects, &r.suspected}, {monitor.Dead, &r.dead}} {
		if *c.into, err = m.Int64Counter(c.of.Name, metric.WithUnit(c.of.Unit), metric.WithDescription(c.of.Help)); err != nil {
			return err
		}
	}
	for _, i := range []monitor.Instrument{monitor.Window, monitor.TTL} {
		_, err = m.Float64ObservableGauge(i.Name, metric.WithUnit(i.Unit), metric.WithDescription(i.Help), metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			for _, s := range r.windows.Samples(i) {
				o.Observe(s.Value)
			}
			return nil
		}))
		if err != nil {
			return err
		}
	}
	return nil
}

// with returns attributes, including that of the lock if there is one.
func (r *recorder) with(e holdfast.Event, pairs ...string) metric.MeasurementOption {
	var list []attribute.KeyValue
	for n := 0; n+1 < len(pairs); n += 2 {
		list = append(list, attribute.String(pairs[n], pairs[n+1]))
	}
	if r.opts.Lock != nil && e.Name != "" {
		list = append(list, attribute.String("lock", r.opts.Lock(e.Name)))
	}
	return metric.WithAttributes(list...)
}

// leads counts the seats that this process has, by the names of its elections.
func (r *recorder) leads(ctx context.Context, e holdfast.Event, n int64) {
	if e.Election {
		r.leading.Add(ctx, n, metric.WithAttributes(attribute.String("name", e.Name)))
	}
}

func (r *recorder) trace() *holdfast.Trace {
	gone := func(ctx context.Context, e holdfast.Event, outcome string) {
		if e.Queued {
			r.waiting.Add(ctx, -1, r.with(e, "mode", monitor.Mode(e.Slots)))
		}
		attrs := []attribute.KeyValue{attribute.String("outcome", outcome), attribute.Bool("queued", e.Queued)}
		if r.opts.Lock != nil {
			attrs = append(attrs, attribute.String("lock", r.opts.Lock(e.Name)))
		}
		r.wait.Record(ctx, e.Waited.Seconds(), metric.WithAttributes(attrs...))
		if !e.Queued {
			return
		}
		_, span := r.opts.Tracer.Start(ctx, "holdfast.acquire", trace.WithTimestamp(time.Now().Add(-e.Waited)), trace.WithAttributes(attrs...))
		if e.Err != nil {
			span.SetStatus(codes.Error, outcome)
		}
		span.End()
	}
	windows := r.windows.Trace()
	return &holdfast.Trace{
		Queued: func(ctx context.Context, e holdfast.Event) {
			r.waiting.Add(ctx, 1, r.with(e, "mode", monitor.Mode(e.Slots)))
			r.leads(ctx, e, 0)
		},
		Acquired: func(ctx context.Context, e holdfast.Event) {
			gone(ctx, e, "acquired")
			if !e.Detached {
				r.held.Add(ctx, 1, r.with(e, "mode", monitor.Mode(e.Slots)))
			}
			r.leads(ctx, e, 1)
		},
		Refused: func(ctx context.Context, e holdfast.Event) { gone(ctx, e, monitor.Outcome(e.Err)) },
		GaveUp:  func(ctx context.Context, e holdfast.Event) { e.Queued = true; gone(ctx, e, monitor.Outcome(e.Err)) },
		Released: func(ctx context.Context, e holdfast.Event) {
			if !e.Detached {
				r.hold.Record(ctx, e.Held.Seconds(), r.with(e, "end", "released"))
				r.held.Add(ctx, -1, r.with(e, "mode", monitor.Mode(e.Slots)))
			}
			r.leads(ctx, e, -1)
		},
		Returned: func(ctx context.Context, e holdfast.Event) {
			r.hold.Record(ctx, e.Held.Seconds(), r.with(e, "end", "released"))
		},
		Lost: func(ctx context.Context, e holdfast.Event) {
			r.hold.Record(ctx, e.Held.Seconds(), r.with(e, "end", monitor.Lost(e)))
			r.held.Add(ctx, -1, r.with(e, "mode", monitor.Mode(e.Slots)))
			r.lost.Add(ctx, 1, r.with(e, "reason", monitor.Lost(e)))
			r.leads(ctx, e, -1)
		},
		FenceRefused: func(ctx context.Context, e holdfast.Event) {
			r.refused.Add(ctx, 1, r.with(e))
			trace.SpanFromContext(ctx).AddEvent("holdfast.fence.refused")
		},
		Broken:       func(ctx context.Context, e holdfast.Event) { r.broken.Add(ctx, 1, r.with(e)) },
		Suspected:    func(ctx context.Context, e holdfast.Event) { r.suspected.Add(ctx, 1) },
		TakenOver:    func(ctx context.Context, e holdfast.Event) { r.tookOver.Add(ctx, 1, r.with(e)) },
		DeclaredDead: func(ctx context.Context, e holdfast.Event) { r.dead.Add(ctx, 1) },
		Heartbeat: func(ctx context.Context, e holdfast.Event) {
			r.beat.Record(ctx, e.Took.Seconds(), r.with(holdfast.Event{}, "result", monitor.Result(e.Err)))
			windows.Heartbeat(ctx, e)
		},
		Shortened:    windows.Shortened,
		SessionEnded: windows.SessionEnded,
		StoreCall: func(ctx context.Context, e holdfast.Event) {
			r.call.Record(ctx, e.Took.Seconds(), r.with(holdfast.Event{}, "operation", e.Operation, "result", monitor.Result(e.Err)))
		},
	}
}
