//go:build linux

package replicas

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// A client takes locks over HTTP as docs/serve.md tells: it counts deadlines by its own clock, from
// before it sends, and believes nothing else.
type client struct {
	base, secret string
	ttl          time.Duration
	http         *http.Client
	believes     func(token int64, deadline time.Time) // hears what it believes; nil: nobody does
}

func newClient(base, secret string, ttl time.Duration) *client {
	return &client{base: base, secret: secret, ttl: ttl, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// A reply is what the server says of a hold, as an answer or an event.
type reply struct {
	Event          string
	State          string
	Valid          float64
	ValidOnReceipt float64 `json:"valid_on_receipt"`
	Wait           float64
	Why, Detail    string
	Locks          []struct{ Token int64 }

	status int
	sent   time.Time // before the request was
}

func seconds(f float64) time.Duration { return time.Duration(f * float64(time.Second)) }

func (c *client) request(ctx context.Context, method, path string, body any, accept string) (*http.Request, error) {
	var text []byte
	if body != nil {
		text, _ = json.Marshal(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.secret)
	req.Header.Set("Content-Type", "application/json")
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	return req, nil
}

// send sends a request once.
func (c *client) send(ctx context.Context, patience time.Duration, method, path string, body any) (r reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r.sent = time.Now()
	req, err := c.request(ctx, method, path, body, "")
	if err != nil {
		return r, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return r, err
	}
	r.status = resp.StatusCode
	if len(text) > 0 {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

// insist sends a request again and again, before the ones before are given up, until one is
// answered: a replica that stands still does not say so.
func (c *client) insist(ctx context.Context, patience time.Duration, method, path string, body any) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	type result struct {
		reply
		err error
	}
	results := make(chan result)
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-again.C:
			go func() {
				r, err := c.send(ctx, patience, method, path, body)
				if err != nil && ctx.Err() == nil {
					time.Sleep(c.ttl / 60)
				}
				select {
				case results <- result{r, err}:
				case <-ctx.Done():
				}
			}()
			again.Reset(c.ttl / 20)
		case r := <-results:
			if r.err == nil && r.status != http.StatusServiceUnavailable {
				return r.reply, nil
			}
		case <-ctx.Done():
			return reply{}, ctx.Err()
		}
	}
}

var errOver = errors.New("over")

// take waits for a name until it holds it, and returns until when it may believe so.
func (c *client) take(ctx context.Context, id, name string, byStream bool) (token int64, deadline time.Time, err error) {
	path := "/v1/holds/" + id
	body := map[string]any{"name": name, "ttl": c.ttl.Seconds(), "wait": 60, "on_close": "lapse"}
	for ctx.Err() == nil {
		var r reply
		if byStream {
			if r, err = c.stream(ctx, path, body); err == nil {
				deadline = time.Now().Add(seconds(r.ValidOnReceipt))
			}
		} else if r, err = c.send(ctx, 3*c.ttl+c.ttl/2, "PUT", path, body); err == nil {
			deadline = r.sent.Add(seconds(r.Valid))
		}
		switch {
		case err == nil && (r.status == 200 && r.State == "held" || r.Event == "held"):
			return r.Locks[0].Token, deadline, nil
		case err == nil && r.status == 410 || r.Event == "lost":
			return 0, deadline, fmt.Errorf("%w: %s", errOver, r.Detail)
		case err == nil && r.status != 202 && r.status != 503 && r.Event != "again":
			return 0, deadline, fmt.Errorf("status %d, event %q: %s", r.status, r.Event, r.Detail)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return 0, deadline, ctx.Err()
}

// stream waits by a stream, and gives up one that is silent for half a TTL, or says nothing at all.
func (c *client) stream(ctx context.Context, path string, body any) (r reply, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := c.request(ctx, "PUT", path, body, "application/x-ndjson")
	if err != nil {
		return r, err
	}
	silence := time.AfterFunc(c.ttl/8, cancel) // the first event comes at once
	defer silence.Stop()
	resp, err := c.http.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	d := json.NewDecoder(resp.Body)
	for r.Event == "" || r.Event == "waiting" {
		r = reply{status: resp.StatusCode}
		if err := d.Decode(&r); err != nil {
			return r, err
		}
		if resp.StatusCode != 200 {
			return r, nil
		}
		r.status = 0
		silence.Reset(c.ttl / 2)
	}
	return r, nil
}

// hold keeps a lock until end, or until it is lost, and gives it back. A lock of which it was told
// too late is none.
func (c *client) hold(ctx context.Context, id, name string, token int64, deadline time.Time, end <-chan struct{}) (b belief, believed bool) {
	path := "/v1/holds/" + id
	defer func() { c.insist(ctx, 2*c.ttl, "DELETE", path, nil) }()
	b = belief{name: name, token: token, begin: time.Now()}
	if !b.begin.Before(deadline) {
		return b, false
	}
	believe := func(until time.Time) {
		if c.believes != nil {
			c.believes(token, until)
		}
	}
	believe(deadline)
	next := b.begin.Add(c.ttl / 3)
	if time.Until(deadline) < c.ttl/2 {
		next = b.begin
	}
	for over := false; !over && b.lost == ""; {
		wake := time.NewTimer(min(time.Until(next), time.Until(deadline)))
		select {
		case <-end:
			over = true
		case <-wake.C:
		}
		wake.Stop()
		switch now := time.Now(); {
		case !now.Before(deadline):
			b.lost = "its deadline came"
			continue
		case over || now.Before(next):
			continue
		}
		r, err := c.insist(ctx, time.Until(deadline), "POST", path+"/beat", nil)
		switch {
		case err == nil && r.status == 200 && r.State == "held":
			deadline = latest(deadline, r.sent.Add(seconds(r.Valid)))
			next = r.sent.Add(c.ttl / 3)
			believe(deadline)
		case err == nil && r.status == 410:
			b.lost = "told: " + r.Why + ", " + r.Detail
		default:
			next = time.Now().Add(c.ttl / 30)
		}
	}
	if b.stop = time.Now(); b.stop.After(deadline) {
		b.stop = deadline
	}
	believe(time.Time{})
	return b, true
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func newID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
