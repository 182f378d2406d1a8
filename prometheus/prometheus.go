// Package prometheus hands the numbers of a monitor to a registry of client_golang. The program
// registers the collector; there is no global registry.
//
//	m := monitor.New(nil)
//	registry.MustRegister(prometheus.New(m))
package prometheus

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lock/holdfast/monitor"
)

type collector struct{ m *monitor.Monitor }

// New makes a collector of a monitor's instruments, with the names of docs/monitoring.md.
func New(m *monitor.Monitor) prometheus.Collector { return collector{m} }

// Describe sends nothing: the labels depend on Options.Lock, so the collector is an unchecked one.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the current numbers.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, i := range monitor.Instruments {
		for _, s := range c.m.Samples(i) {
			var names, values []string
			for n := 0; n+1 < len(s.Labels); n += 2 {
				names, values = append(names, s.Labels[n]), append(values, s.Labels[n+1])
			}
			d := prometheus.NewDesc(i.Prometheus(), i.Help, names, nil)
			switch i.Kind {
			case monitor.Histogram:
				buckets := make(map[float64]uint64, len(s.Buckets))
				for n, count := range s.Buckets {
					buckets[monitor.Buckets[n]] = count
				}
				ch <- prometheus.MustNewConstHistogram(d, s.Count, s.Value, buckets, values...)
			case monitor.Counter:
				ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, s.Value, values...)
			default:
				ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, s.Value, values...)
			}
		}
	}
}
