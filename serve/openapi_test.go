package serve

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/memory"
)

var update = flag.Bool("update", false, "write testdata/transcript.txt anew")

// A schema is JSON Schema, as far as openapi.json uses it.
type schema struct {
	Ref        string             `json:"$ref"`
	Type       any                `json:"type"`
	Properties map[string]*schema `json:"properties"`
	Required   []string           `json:"required"`
	Additional any                `json:"additionalProperties"`
	Items      *schema            `json:"items"`
	Enum       []any              `json:"enum"`
	OneOf      []*schema          `json:"oneOf"`
	Pattern    string             `json:"pattern"`
	Format     string             `json:"format"`
	Minimum    *float64           `json:"minimum"`
	Maximum    *float64           `json:"maximum"`
}

type operation struct {
	RequestBody *struct {
		Content map[string]struct{ Schema *schema }
	}
	Responses map[string]struct {
		Content map[string]struct{ Schema *schema }
	}
}

type api struct {
	Paths      map[string]map[string]*operation
	Components struct{ Schemas map[string]*schema }
}

func describedAPI(t *testing.T) *api {
	t.Helper()
	var d api
	if err := json.Unmarshal(description, &d); err != nil {
		t.Fatal(err)
	}
	return &d
}

// check says where a value is not as a schema has it.
func (d *api) check(s *schema, v any, at string) error {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		if d.Components.Schemas[name] == nil {
			return fmt.Errorf("%s: there is no schema %s", at, name)
		}
		return d.check(d.Components.Schemas[name], v, at)
	}
	if len(s.OneOf) > 0 {
		var errs []string
		for _, one := range s.OneOf {
			err := d.check(one, v, at)
			if err == nil {
				return nil
			}
			errs = append(errs, err.Error())
		}
		return fmt.Errorf("none of: %s", strings.Join(errs, "; "))
	}
	types := []any{s.Type}
	if list, ok := s.Type.([]any); ok {
		types = list
	}
	kind := map[reflect.Kind]string{reflect.String: "string", reflect.Float64: "number", reflect.Bool: "boolean", reflect.Map: "object", reflect.Slice: "array", reflect.Invalid: "null"}[reflect.ValueOf(v).Kind()]
	f, _ := v.(float64)
	if !slices.Contains(types, any(kind)) && !(kind == "number" && f == float64(int64(f)) && slices.Contains(types, any("integer"))) {
		return fmt.Errorf("%s is %T %v, not %v", at, v, v, s.Type)
	}
	if len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
		return fmt.Errorf("%s is %v, none of %v", at, v, s.Enum)
	}
	if kind == "number" && (s.Minimum != nil && f < *s.Minimum || s.Maximum != nil && f > *s.Maximum) {
		return fmt.Errorf("%s is %v", at, f)
	}
	if text, ok := v.(string); ok {
		if s.Pattern != "" && !regexp.MustCompile(s.Pattern).MatchString(text) {
			return fmt.Errorf("%s is %q, which %s does not match", at, text, s.Pattern)
		}
		if _, err := time.Parse(time.RFC3339, text); s.Format == "date-time" && err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	if list, ok := v.([]any); ok {
		for i, one := range list {
			if err := d.check(s.Items, one, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	for _, name := range s.Required {
		if _, ok := m[name]; !ok {
			return fmt.Errorf("%s has no %s", at, name)
		}
	}
	for name, one := range m {
		if p := s.Properties[name]; p != nil {
			if err := d.check(p, one, at+"."+name); err != nil {
				return err
			}
		} else if s.Additional == false {
			return fmt.Errorf("%s.%s is not described", at, name)
		}
	}
	return nil
}

func described(path string) string { return strings.ReplaceAll(path, "...}", "}") }

// Each route is described, and what is described is there.
func TestRoutesDescribed(t *testing.T) {
	inTime(t, func(t *testing.T, a, _ *replica) {
		d := describedAPI(t)
		a.handler.opts.Doctor = func(context.Context) []driver.Finding { return nil }
		left := make(map[string]bool)
		for path, operations := range d.Paths {
			for method := range operations {
				left[strings.ToUpper(method)+" "+path] = true
			}
		}
		for _, rt := range a.handler.routes() {
			if rt.method == "LOCK" || rt.method == "UNLOCK" { // OpenAPI has no such methods: see POST and DELETE
				continue
			}
			key := rt.method + " " + described(rt.path)
			if !left[key] {
				t.Errorf("openapi.json does not describe %s", key)
				continue
			}
			delete(left, key)
			op := d.Paths[described(rt.path)][strings.ToLower(rt.method)]
			if _, refuses := op.Responses["401"]; refuses != (rt.verb != 0) {
				t.Errorf("%s takes a verb: %v; described with 401: %v", key, rt.verb != 0, refuses)
			}
		}
		for key := range left {
			t.Errorf("openapi.json describes %s, which is not there", key)
		}
		for kind := range problemKinds {
			a.do(nil, "GET", "/problems/"+kind, "").want(t, 200)
		}
	})
}

// The transcript is what a client and a server say to each other. It is as the file has it, and
// each request and each answer is as openapi.json describes it; nothing is described that does not
// come up in it, but for answers that every route has.
func TestTranscript(t *testing.T) {
	var got strings.Builder
	d := describedAPI(t)
	seen := make(map[string]bool)
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		opts := &Options{Doctor: func(context.Context) []driver.Finding {
			return []driver.Finding{{Level: driver.Good, Subject: "store", Text: "memory:, answers in 12µs"}}
		}}
		a := newReplica(t, store, opts)
		a.handler.host = "web-1"
		send := func(method, path, body string) *answer {
			t.Helper()
			req := a.request(t.Context(), all, method, path, body)
			w := httptest.NewRecorder()
			a.handler.ServeHTTP(w, req)
			ans := answered(t, w)
			fmt.Fprintf(&got, "%s %s %s\n%d %s\n", method, path, body, ans.status, ans.header.Get("Content-Type"))
			if text := strings.TrimSuffix(ans.text, "\n"); text != "" && path != "/openapi.json" {
				fmt.Fprintln(&got, text)
			}
			fmt.Fprintln(&got)
			clean, _, _ := strings.Cut(path, "?")
			bare := httptest.NewRequest(method, clean, nil)
			_, pattern := a.handler.mux.Handler(bare)
			_, route, _ := strings.Cut(pattern, " ")
			op := d.Paths[described(route)][strings.ToLower(method)]
			if op == nil {
				t.Fatalf("%s %s is not described", method, path)
			}
			if body != "" && ans.status != 400 {
				var v any
				if err := json.Unmarshal([]byte(body), &v); err != nil {
					t.Fatal(err)
				}
				if err := d.check(op.RequestBody.Content["application/json"].Schema, v, "request"); err != nil {
					t.Errorf("%s %s %s: %v", method, path, body, err)
				}
			}
			status := fmt.Sprint(ans.status)
			seen[method+" "+described(route)+" "+status] = true
			r, ok := op.Responses[status]
			if !ok {
				t.Errorf("%s %s: %s is not described: %v", method, path, status, ans)
				return ans
			}
			kind, _, _ := strings.Cut(ans.header.Get("Content-Type"), ";")
			content, ok := r.Content[kind]
			if !ok && len(r.Content) > 0 {
				t.Errorf("%s %s %s: %s is not described", method, path, status, kind)
			} else if ok && ans.body != nil {
				if err := d.check(content.Schema, map[string]any(ans.body), "answer"); err != nil {
					t.Errorf("%s %s %v: %v", method, path, ans, err)
				}
			}
			return ans
		}
		hold := func(n int) string { return "/v1/holds/" + id(n) }
		send("PUT", hold(1), `{"name":"nightly","reason":"backup","labels":{"ticket":"815"}}`)
		send("PUT", hold(1), `{"name":"weekly"}`)
		send("GET", hold(1), "")
		send("POST", hold(1)+"/beat", "")
		send("PUT", hold(2), `{"name":"nightly","owner":{"program":"import.py","labels":{"job":"815"}}}`)
		send("PUT", hold(2), `{"name":"nightly","wiat":5}`)
		send("PUT", hold(3), `{"name":"nightly","ttl":1,"wait":600}`)
		send("POST", hold(3)+"/beat", "")
		send("GET", hold(3), "")
		send("GET", "/v1/locks/nightly", "")
		send("GET", "/v1/locks?prefix=n&limit=1", "")
		send("GET", "/v1/sessions?limit=1", "")
		send("DELETE", hold(3), "")
		send("DELETE", hold(1), "")
		send("PUT", hold(1), `{"name":"nightly"}`)
		send("GET", hold(1), "")
		send("POST", hold(1)+"/beat", "")
		send("PUT", hold(4), `{"names":["acct/1","acct/2"],"slots":3}`)
		send("PUT", hold(4), `{"names":["acct/1","acct/2"],"shared":true}`)
		send("POST", "/v1/beats", fmt.Sprintf(`{"ids":[%q,%q]}`, id(4), id(9)))
		send("PUT", hold(5), `{"name":"migration","for":600}`)
		send("POST", hold(5)+"/beat", `{"for":1200}`)
		token := send("PUT", hold(6), `{"name":"deploy/shop"}`).token(t)
		broken := make(chan *answer, 1)
		go func() {
			time.Sleep(time.Second)
			a.do(all, "POST", hold(6)+"/beat", "")
			broken <- a.do(all, "DELETE", hold(6), "")
		}()
		send("POST", "/v1/breaks", fmt.Sprintf(`{"name":"deploy/shop","token":%d,"reason":"ticket 815"}`, token))
		<-broken
		send("POST", "/v1/breaks", fmt.Sprintf(`{"name":"deploy/shop","token":%d,"reason":"ticket 815"}`, token))
		send("GET", "/v1/locks/deploy/shop", "")
		time.Sleep(20 * time.Second) // behind a heartbeat
		send("GET", "/v1/history/deploy/shop", "")
		send("GET", "/v1/state/repo", "")
		send("GET", "/v1/doctor", "")
		send("GET", "/v1/config/ttl", "")
		send("GET", "/v1/config/colour", "")
		send("PUT", "/v1/config/ttl", `{"ttl":30}`)
		send("GET", "/v1/config/history", "")
		send("PUT", "/v1/config/history", `{"history":128}`)
		send("PUT", "/v1/config/colour", `{"ttl":30}`)
		const network, info = "/v1/terraform/tf/network?for=1h", `{"ID":"5a1dfd9c-3f0e-4b5c-9c3b-0d6f1f0a0a%02d","Operation":"OperationTypeApply","Who":"ana@laptop","Version":"1.9.0","Created":"2026-11-25T07:00:00Z","Path":""}`
		send("POST", network, fmt.Sprintf(info, 1))
		send("POST", network, fmt.Sprintf(info, 2))
		send("POST", "/v1/terraform/tf/other?for=1h", fmt.Sprintf(info, 1))
		send("DELETE", "/v1/terraform/tf/network", fmt.Sprintf(info, 1))
		send("POST", network, fmt.Sprintf(info, 1))
		send("GET", "/problems/over", "")
		send("GET", "/problems/nothing", "")
		send("GET", "/openapi.json", "")
		send("GET", "/healthz", "")
		send("GET", "/readyz", "")
		a.stream2(t, d, &got)
		a.handler.Drain()
		send("GET", "/readyz", "")
	})
	unheard := []string{"GET /metrics 200", "GET /v1/holds/{id} 422", "POST /v1/holds/{id}/beat 422", "DELETE /v1/holds/{id} 422", "POST /v1/terraform/{name} 409"}
	for path, operations := range d.Paths {
		for method, op := range operations {
			for status := range op.Responses {
				key := strings.ToUpper(method) + " " + path + " " + status
				if !seen[key] && !slices.Contains([]string{"400", "401", "403", "413", "415", "429", "503"}, status) && !slices.Contains(unheard, key) {
					t.Errorf("openapi.json describes %s, which the transcript has not", key)
				}
			}
		}
	}
	text := masked(got.String())
	if *update {
		if err := os.WriteFile("testdata/transcript.txt", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/transcript.txt")
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("the transcript has changed; look at it with -update. It is now:\n%s", text)
	}
}

// stream2 has a hold by its connection in the transcript, as ndjson.
func (r *replica) stream2(t *testing.T, d *api, got *strings.Builder) {
	t.Helper()
	fmt.Fprintf(got, "PUT /v1/holds/%s {\"name\":\"stream\",\"wait\":60}\nAccept: application/x-ndjson\n200 application/x-ndjson\n", id(8))
	r.do(all, "PUT", "/v1/holds/"+id(7), `{"name":"stream"}`)
	s := r.stream(all, "PUT", "/v1/holds/"+id(8), ndjson, `{"name":"stream","wait":60}`)
	note := func(m map[string]any) {
		t.Helper()
		if err := d.check(&schema{Ref: "#/components/schemas/Event"}, m, "event"); err != nil {
			t.Error(err)
		}
		text, _ := json.Marshal(m)
		got.Write(append(text, '\n'))
	}
	note(s.event(t, "waiting"))
	r.do(all, "DELETE", "/v1/holds/"+id(7), "")
	note(s.until(t, "waiting", "held"))
	note(s.event(t, "kept"))
	r.do(all, "DELETE", "/v1/holds/"+id(8), "")
	note(s.until(t, "kept", "lost"))
	fmt.Fprintln(got)
}

var vague = []struct {
	find *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`"token":\d+`), `"token":1795226403001234`},
	{regexp.MustCompile(`"(requested|granted|at|ends|started|from|to)":"[^"]*"`), `"$1":"2026-11-25T10:00:00Z"`},
	{regexp.MustCompile(`"(valid|valid_on_receipt|wait|beat_age|took|waited|held)":[\d.]+`), `"$1":…`},
	{regexp.MustCompile(`(for|ago|heartbeat) [\d.]+m?s`), `$1 …s`},
	{regexp.MustCompile(`"key":"\d+"`), `"key":"1795226403001234"`},
	{regexp.MustCompile(`"pid":\d+`), `"pid":815`},
	{regexp.MustCompile(`"fault":"\w+"`), `"fault":"c0ffee12"`},
}

func masked(s string) string {
	for _, v := range vague {
		s = v.find.ReplaceAllString(s, v.with)
	}
	return s
}
