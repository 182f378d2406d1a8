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
	http.Handle("/metrics", m)                                           // for a Prometheus server
	http.Handle("/readyz", monitor.Ready(client))                        // 200 while the client is healthy
	http.Handle("/leader", monitor.Leader(client.Election("scheduler"))) // 200 on the leader alone
	return client.Close()
}
