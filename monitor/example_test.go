package monitor_test

import (
	"net/http"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
	"github.com/holdfast-lock/holdfast/monitor"
)

func Example() {
	store := memory.New()
	err := serveMetrics(store)
	if err != nil {
		panic(err)
	}
	// Output:
}

func serveMetrics(store *memory.Store) error {
	m := monitor.New(nil)
	client, err := holdfast.New(store, &holdfast.Options{Trace: m.Trace()})
	if err != nil {
		return err
	}
	seat := client.Election("scheduler")          // for seat.Run, too
	http.Handle("/metrics", m)                    // for a Prometheus server
	http.Handle("/readyz", monitor.Ready(client)) // 200 while the client is healthy
	http.Handle("/leader", monitor.Leader(seat))  // 200 while seat.Run leads
	return client.Close()
}
