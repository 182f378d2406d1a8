package sqlstore

import (
	"slices"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
)

// What puts locks at risk is refused unless it is accepted by its own name.
func TestDangers(t *testing.T) {
	on := func(name string) func(Facts) bool {
		return func(s Facts) bool { return s[name] == "2" }
	}
	ds := Dangers{
		{Name: "fire", Subject: "heat", There: on("a"), Text: "a is $a: it burns", Cure: "Set a = 1"},
		{Name: "water", Subject: "damp", There: on("b"), Text: "b is $b", Cure: "Set b = 1"},
	}
	if err := ds.Check([]string{"water", "air"}); err == nil || err.Error() != `cannot allow "air": it is none of fire, water` {
		t.Errorf("got %v", err)
	}
	wet := Facts{"a": "1", "b": "2"}
	if err := ds.Refuse(wet, []string{"fire"}, false); err == nil || err.Error() != `b is 2. Set b = 1, or accept it: allow "water"` {
		t.Errorf("got %v", err)
	}
	if err := ds.Refuse(wet, []string{"water"}, false); err != nil {
		t.Error(err)
	}
	for _, test := range []struct {
		server Facts
		allow  []string
		want   driver.Finding
	}{
		{wet, nil, driver.Finding{Level: driver.Failure, Subject: "damp", Text: "b is 2. Set b = 1"}},
		{wet, []string{"fire"}, driver.Finding{Level: driver.Failure, Subject: "damp", Text: "b is 2. Set b = 1"}},
		{wet, []string{"water"}, driver.Finding{Level: driver.Warning, Subject: "damp", Text: "water is accepted: b is 2"}},
		{Facts{"a": "1"}, nil, driver.Finding{Level: driver.Good, Subject: "durability", Text: "a 1"}},
	} {
		var r driver.Findings
		ds.Report(&r, test.server, test.allow, "a $a")
		if len(r) != 1 || r[0] != test.want {
			t.Errorf("%v, allowed %q: %+v, want %+v", test.server, test.allow, r, test.want)
		}
	}
}

// A text has those above it in place of their names, and no comments.
func TestTexts(t *testing.T) {
	texts := Texts("-- of all\n\n--- clock\nnow()\n\n-- of one\n--- load all\nselect {{clock}}\n-- between\nfrom {records} -- {{x}}\n")
	if want := "select now()\nfrom {records} -- {{x}}"; texts["load all"] != want || texts["clock"] != "now()" || len(texts) != 2 {
		t.Errorf("got %q", texts)
	}
}

// A role is named as it is, whatever is in its name, and by some name.
func TestGrants(t *testing.T) {
	tables := Tables{Schema: "locks", Prefix: "hf_"}
	texts := map[string]string{"grants": "grant update on {records} to $role;", "grant usage": "grant usage on schema $schema to $role;",
		"grants to look": "grant select on {records} to $role;\ngrant select on {meta} to $role;"}
	got, err := Grants(tables, `"`, texts, Quote(`a "b" {meta}`, `"`), true)
	want := []string{`grant usage on schema "locks" to "a ""b"" {meta}"`,
		`grant select on "locks"."hf_records" to "a ""b"" {meta}"`, `grant select on "locks"."hf_meta" to "a ""b"" {meta}"`}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, error %v", got, err)
	}
	if got, err := Grants(Tables{Prefix: "hf_"}, `"`, texts, `"a"`, false); err != nil || !slices.Equal(got, []string{`grant update on "hf_records" to "a"`}) {
		t.Errorf("got %q, error %v", got, err)
	}
	for _, role := range []string{"", "a\x00"} {
		if got, err := Grants(tables, `"`, texts, Quote(role, `"`), false); err == nil {
			t.Errorf("granted to %q: %q", role, got)
		}
	}
}
