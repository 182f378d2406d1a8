package main

import (
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/monitor"
	"github.com/holdfast-lock/holdfast/otel"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
)

// tracing makes the traces that programs have, by their names.
var tracing = map[string]func() (*holdfast.Trace, error){
	"":                       func() (*holdfast.Trace, error) { return nil, nil },
	"monitor, as Prometheus": func() (*holdfast.Trace, error) { return monitor.New(nil).Trace(), nil },
	"OpenTelemetry": func() (*holdfast.Trace, error) {
		return otel.New(&otel.Options{
			Meter:  metric.NewMeterProvider(metric.WithReader(metric.NewManualReader())).Meter("bench"),
			Tracer: trace.NewTracerProvider().Tracer("bench"), // spans are made, and exported nowhere
		})
	},
}

var tracingNames = []string{"", "monitor, as Prometheus", "OpenTelemetry"}

// metrics takes a free lock, and hands locks over, with and without metrics and spans recorded.
func metrics(b *bench) (rows []Row, err error) {
	if rows, err = b.metricsInside(); err != nil {
		return nil, err
	}
	for _, store := range []string{"sqlite", "postgres"} {
		if !b.has(store) {
			continue
		}
		b.say("  %s", store)
		some, err := b.metricsOn(findSystem(store, "holdfast"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", store, err)
		}
		rows = append(rows, some...)
	}
	return rows, nil
}

// traced says how a row of what is recorded compares with nothing recorded.
func traced(row Row, name string, taken []rounds, i int) Row {
	row.System = "holdfast"
	if name != "" {
		row.System += ", " + name
	}
	if row.Of = "no metrics"; i == 0 {
		row.Of = "itself"
	}
	row.Ratio = taken[i].ratio(taken[0])
	return row
}

// metricsInside hands a lock around among 64 goroutines of a process.
func (b *bench) metricsInside() (rows []Row, err error) {
	length := 200 * time.Millisecond
	if b.quick {
		length = 50 * time.Millisecond
	}
	var runs []run
	for _, name := range tracingNames {
		c, err := newClient(&b.site, memory.New(), options{Tracing: name})
		if err != nil {
			return nil, err
		}
		defer c.close()
		runs = append(runs, run{name: name, round: func() (series, error) {
			return rate(64, length, func(int) error { return pair(b.ctx, c, "nightly") })
		}})
	}
	taken, err := b.take(b.rounds, true, runs)
	for i, name := range tracingNames {
		if err == nil {
			row := taken[i].row(Row{Store: "memory", Case: "hand-offs in a process, 64 goroutines"}, "/s", 1)
			rows = append(rows, traced(row, name, taken, i))
		}
	}
	return rows, err
}

// metricsOn takes a free lock, and hands one over between two processes.
func (b *bench) metricsOn(s *system) (rows []Row, err error) {
	n := 50
	if b.quick {
		n = 10
	}
	var free, hands []run
	for _, name := range tracingNames {
		l, err := s.open(b.ctx, &b.site, options{Tracing: name})
		if err != nil {
			return nil, err
		}
		defer l.close()
		free = append(free, b.measured(run{name: name, round: func() (series, error) {
			return timed(n, func() error { return pair(b.ctx, l, "nightly") })
		}}, s, l, false))
		hands = append(hands, run{name: name, round: func() (series, error) {
			c, err := b.crowd(s, 2, options{Tracing: name})
			return c.hands, err
		}})
	}
	for _, part := range []struct {
		what  string
		times int
		runs  []run
	}{{"a free lock", b.rounds, free}, {"a hand-off between 2 processes", b.few(), hands}} {
		taken, err := b.take(part.times, part.times == b.rounds, part.runs)
		if err != nil {
			return nil, err
		}
		for i, name := range tracingNames {
			row := taken[i].row(s.row(part.what), "ms", 1e3)
			row.Uses = part.runs[i].used.each()
			rows = append(rows, traced(row, name, taken, i))
		}
	}
	return rows, nil
}
