package cli

import "testing"

// What we tell the user to run is on the store that was given, without its password, and can be
// pasted into a shell.
func TestHint(t *testing.T) {
	before := GivenStore
	defer func() { GivenStore = before }()
	for _, test := range []struct{ given, name, want string }{
		{"", "nightly", "holdfast show nightly"},
		{"sqlite:locks.db", "a b", "holdfast --store sqlite:locks.db show 'a b'"},
		{"sqlite:it's here.db", "$(x)", `holdfast --store 'sqlite:it'\''s here.db' show '$(x)'`},
		{"postgres://app:hunter2@db/shop?sslmode=require", "a", "holdfast --store 'postgres://app@db/shop?sslmode=require' show a"},
		{"postgres://app@db/shop?pass%77ord=hunter2&prefix=x_", "a", "holdfast --store 'postgres://app@db/shop?prefix=x_' show a"},
		{"postgres://db/shop", "ä\x1b", `holdfast --store postgres://db/shop show 'ä\x1b'`},
	} {
		GivenStore = test.given
		if got := Hint("show %s", ShellWord(test.name)); got != test.want {
			t.Errorf("%q: got %s, want %s", test.given, got, test.want)
		}
	}
	GivenStore = "sqlite:locks.db"
	if got, want := WithHints("create it with sqlite.Migrate or: holdfast schema apply"), "create it with sqlite.Migrate or: holdfast --store sqlite:locks.db schema apply"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
