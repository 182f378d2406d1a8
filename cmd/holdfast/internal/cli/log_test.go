package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/memory"
)

// A log has one line for each event, in order, and durations in seconds.
func TestLog(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		synctest.Test(t, func(t *testing.T) {
			log := &EventLog{log: newLog(format, &out)}
			store := memory.New()
			client := func(trace *holdfast.Trace) *holdfast.Client {
				c, err := holdfast.New(store, &holdfast.Options{RuntimeDir: os.DevNull, Trace: trace})
				if err != nil {
					t.Fatal(err)
				}
				return c
			}
			other, c := client(nil), client(log.Trace(Target{}))
			defer other.Close()
			defer c.Close()
			held, err := other.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			c.TryAcquire(t.Context(), "a")
			time.AfterFunc(1500*time.Millisecond, func() { held.Release(t.Context()) })
			log.Requested([]string{"a"}, "")
			l, err := c.Acquire(t.Context(), "a", holdfast.Reason("for\x1b\u202e postgres://app:hunter2@db/x"))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			if err := other.BreakNow(t.Context(), "a", l.Token(), "ticket 815"); err != nil {
				t.Fatal(err)
			}
			<-l.Context().Done()
			synctest.Wait()
		})
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		var events []string
		for _, line := range lines {
			var fields struct{ Event string }
			if format == "text" {
				_, after, _ := strings.Cut(line, "event=")
				fields.Event, _, _ = strings.Cut(after, " ")
			} else if err := json.Unmarshal([]byte(line), &fields); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			events = append(events, fields.Event)
		}
		if want := []string{"refused", "requested", "waiting", "granted", "broken"}; !reflect.DeepEqual(events, want) {
			t.Errorf("%s: events %q, want %q in\n%s", format, events, want, out.String())
		}
		for _, want := range map[string][]string{
			"json": {`"event":"granted","name":"a","token":`, `"waited":1.`, `"reason":"for\u001b\u202e postgres://app@db/x"`, `"held":1`},
			"text": {`event=granted name=a token=`, `waited=1.`, `reason="for\x1b\u202e postgres://app@db/x"`, `held=1`},
		}[format] {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %s in\n%s", want, out.String())
			}
		}
		if strings.Contains(out.String(), "hunter2") {
			t.Errorf("a password in\n%s", out.String())
		}
	}
}

// The flags of the log are checked before anything is done.
func TestLogFlags(t *testing.T) {
	for to, want := range map[string]string{
		"xml":           `--log "xml": json or text`,
		"json:/no/such": "--log: open /no/such",
	} {
		if err := (&EventLog{to: to}).Open(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", to, err)
		}
	}
	if err := (&EventLog{to: "text", verbose: true}).Open(); err == nil {
		t.Error("-v and --log are taken together")
	}
}
