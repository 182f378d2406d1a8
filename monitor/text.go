package monitor

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// TextType is the content type of the text that a Prometheus server reads.
const TextType = "text/plain; version=0.0.4; charset=utf-8"

// ServeHTTP answers a Prometheus server.
func (m *Monitor) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", TextType)
	_, _ = m.WriteTo(w) // the scraper has gone
}

// WriteTo writes all instruments as Prometheus reads them.
func (m *Monitor) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	for _, i := range Instruments {
		WriteText(&b, i, m.Samples(i))
	}
	return b.WriteTo(w)
}

// WriteText writes one instrument as Prometheus reads it; nothing if it has no samples.
func WriteText(b *bytes.Buffer, i Instrument, samples []Sample) {
	if len(samples) == 0 {
		return
	}
	name := i.Prometheus()
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", name, i.Help, name, i.Kind)
	for _, s := range samples {
		if i.Kind != Histogram {
			fmt.Fprintf(b, "%s%s %s\n", name, labels(s.Labels), number(s.Value))
			continue
		}
		for n, most := range Buckets {
			fmt.Fprintf(b, "%s_bucket%s %d\n", name, labels(s.Labels, "le", number(most)), s.Buckets[n])
		}
		fmt.Fprintf(b, "%s_bucket%s %d\n", name, labels(s.Labels, "le", "+Inf"), s.Count)
		fmt.Fprintf(b, "%s_sum%s %s\n%s_count%s %d\n", name, labels(s.Labels), number(s.Value), name, labels(s.Labels), s.Count)
	}
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

var escapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func labels(pairs []string, more ...string) string {
	var b strings.Builder
	for _, list := range [][]string{pairs, more} {
		for n := 0; n+1 < len(list); n += 2 {
			b.WriteByte("{,"[min(b.Len(), 1)])
			b.WriteString(list[n] + `="` + escapes.Replace(list[n+1]) + `"`)
		}
	}
	if b.Len() > 0 {
		b.WriteByte('}')
	}
	return b.String()
}
