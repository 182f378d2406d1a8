// Package overhttp is a client of `holdfast serve` for tests: what docs/serve.md asks of a correct
// client, with its rules in plain sight. It says what it believes, and when.
package overhttp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"time"
)

// A Client takes locks over HTTP: it counts deadlines by its own clock, from before it sends, and
// believes nothing else.
type Client struct {
	Base, Secret string
	TTL          time.Duration // of its holds
	// Believes hears what the client believes of a hold, until when; the zero time: nothing any
	// more. nil: nobody does.
	Believes func(token int64, deadline time.Time)
}

// Connections are not kept: a balancer is to choose anew for each request.
var connections = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// A Request says what a hold is to be.
type Request struct {
	Names    []string
	Wait     time.Duration
	ByStream bool           // wait by a stream
	Fields   map[string]any // further fields of the PUT
}

// A Grant is a hold that was granted.
type Grant struct {
	ID       string
	Token    int64     // of the first name
	Deadline time.Time // it may be believed in until then
}

// A Belief is that of a client in a hold.
type Belief struct {
	Begin, Stop time.Time
	Lost        string // why it was lost; "": it was given back
}

// ErrOver: the hold is over; enter anew with another id.
var ErrOver = errors.New("over")

// A StatusError is an answer with which the client does not go on.
type StatusError struct {
	Status int
	Detail string
}

func (e *StatusError) Error() string { return fmt.Sprintf("status %d: %s", e.Status, e.Detail) }

// NewID draws the id of a hold.
func NewID() string {
	return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
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

func (c *Client) request(ctx context.Context, method, path string, body any, accept string) (*http.Request, error) {
	var text []byte
	if body != nil {
		text, _ = json.Marshal(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.Base+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.Secret)
	req.Header.Set("Content-Type", "application/json")
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	return req, nil
}

// send sends a request once.
func (c *Client) send(ctx context.Context, patience time.Duration, method, path string, body any) (r reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r.sent = time.Now()
	req, err := c.request(ctx, method, path, body, "")
	if err != nil {
		return r, err
	}
	resp, err := connections.Do(req)
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

// afterTooMany is after how long to ask a server again that was asked too often.
func afterTooMany() time.Duration { return 500*time.Millisecond + rand.N(time.Second) }

// insist sends a request again and again, before the ones before are given up, until one is
// answered: a replica that stands still does not say so.
func (c *Client) insist(ctx context.Context, patience time.Duration, method, path string, body any) (reply, error) {
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
					time.Sleep(c.TTL / 60)
				}
				select {
				case results <- result{r, err}:
				case <-ctx.Done():
				}
			}()
			again.Reset(c.TTL / 20)
		case r := <-results:
			switch {
			case r.err == nil && r.status == http.StatusTooManyRequests && method == "DELETE": // a heartbeat cannot wait
				again.Reset(afterTooMany())
			case r.err == nil && r.status != http.StatusServiceUnavailable:
				return r.reply, nil
			}
		case <-ctx.Done():
			return reply{}, ctx.Err()
		}
	}
}

// Take waits for a hold until it is held, and returns until when that may be believed. The same id
// again goes on with the same hold.
func (c *Client) Take(ctx context.Context, id string, q Request) (g Grant, err error) {
	path, end := "/v1/holds/"+id, time.Now().Add(q.Wait)
	body := map[string]any{"names": q.Names, "ttl": c.TTL.Seconds(), "on_close": "lapse"}
	maps.Copy(body, q.Fields)
	g.ID = id
	for ctx.Err() == nil {
		if q.Wait > 0 {
			body["wait"] = max(time.Until(end), time.Millisecond).Seconds()
		}
		var r reply
		if q.ByStream {
			if r, err = c.stream(ctx, path, body); err == nil {
				g.Deadline = time.Now().Add(seconds(r.ValidOnReceipt))
			}
		} else if r, err = c.send(ctx, 3*c.TTL+c.TTL/2, "PUT", path, body); err == nil {
			g.Deadline = r.sent.Add(seconds(r.Valid))
		}
		switch {
		case err == nil && (r.status == 200 && r.State == "held" || r.Event == "held"):
			g.Token = r.Locks[0].Token
			return g, nil
		case err == nil && (r.status == http.StatusGone || r.Event == "lost"):
			return g, fmt.Errorf("%w: %s", ErrOver, r.Detail)
		case err == nil && r.status == http.StatusTooManyRequests:
			time.Sleep(afterTooMany())
		case err == nil && r.status != 202 && r.status != 503 && r.Event != "again":
			if r.Event == "refused" {
				r.status = http.StatusConflict
			}
			return g, &StatusError{r.status, r.Detail}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return g, ctx.Err()
}

// stream waits by a stream, and gives up one that is silent for half a TTL, or says nothing at all.
func (c *Client) stream(ctx context.Context, path string, body any) (r reply, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := c.request(ctx, "PUT", path, body, "application/x-ndjson")
	if err != nil {
		return r, err
	}
	silence := time.AfterFunc(c.TTL/8, cancel) // the first event comes at once
	defer silence.Stop()
	resp, err := connections.Do(req)
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
		silence.Reset(c.TTL / 2)
	}
	return r, nil
}

// Keep sends heartbeats for a hold until end, or until it is lost, and gives it back. A hold of which
// the client was told too late is none.
func (c *Client) Keep(ctx context.Context, g Grant, end <-chan struct{}) (b Belief, believed bool) {
	path, deadline := "/v1/holds/"+g.ID, g.Deadline
	defer func() { c.insist(ctx, 2*c.TTL, "DELETE", path, nil) }()
	b.Begin = time.Now()
	if !b.Begin.Before(deadline) {
		return b, false
	}
	believe := func(until time.Time) {
		if c.Believes != nil {
			c.Believes(g.Token, until)
		}
	}
	believe(deadline)
	next := b.Begin.Add(c.TTL / 3)
	if time.Until(deadline) < c.TTL/2 {
		next = b.Begin
	}
	for over := false; !over && b.Lost == ""; {
		wake := time.NewTimer(min(time.Until(next), time.Until(deadline)))
		select {
		case <-end:
			over = true
		case <-wake.C:
		}
		wake.Stop()
		switch now := time.Now(); {
		case !now.Before(deadline):
			b.Lost = "its deadline came"
			continue
		case over || now.Before(next):
			continue
		}
		r, err := c.insist(ctx, time.Until(deadline), "POST", path+"/beat", nil)
		switch {
		case err == nil && r.status == 200 && r.State == "held":
			deadline = latest(deadline, r.sent.Add(seconds(r.Valid)))
			next = r.sent.Add(c.TTL / 3)
			believe(deadline)
		case err == nil && r.status == 410:
			b.Lost = "told: " + r.Why + ", " + r.Detail
		default:
			next = time.Now().Add(c.TTL / 30)
		}
	}
	if b.Stop = time.Now(); b.Stop.After(deadline) {
		b.Stop = deadline
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
