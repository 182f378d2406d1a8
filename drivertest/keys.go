package drivertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lock/holdfast/driver"
)

// keyCases are about names, and about listing them.
var keyCases = []testCase{
	{
		name: "strange keys",
		rule: "a name is 1 to 1,024 arbitrary bytes, compared as bytes",
		run: func(h *harness) {
			// In a short run locks take all of the names, the other spaces a third.
			of := func(space driver.Space) (names []string) {
				for i, n := range strangeNames {
					if !testing.Short() || space == driver.Names || i%3 == 0 {
						names = append(names, n)
					}
				}
				return names
			}
			for _, space := range spaces {
				var writes []driver.Write
				var keys []driver.Key
				for i, n := range of(space) {
					k := driver.Key{Space: space, Name: n}
					keys = append(keys, k)
					writes = append(writes, driver.Write{Key: k, Old: driver.IfEmpty, Value: fmt.Appendf(nil, "%s %d", space, i)})
				}
				// Some alone, the rest together.
				const alone = 20
				for _, w := range writes[:alone] {
					h.win(w)
				}
				for i, o := range h.swapAll(writes[alone:]...) {
					if !o.Won {
						h.Fatalf("%s is the same key as another: lost to %s", describe(keys[alone+i]), show(o.Record))
					}
				}
				for i, r := range h.loadAll(keys...) {
					if got, want := string(r.Value), string(writes[i].Value); got != want {
						h.Errorf("%s holds %q, want %q", describe(keys[i]), got, want)
					}
				}
			}
			for _, space := range spaces {
				got := h.keys(space, "", 1000)
				if want := slices.Sorted(slices.Values(of(space))); !slices.Equal(got, want) {
					h.Errorf("Keys lists %d names of space %s and not the %d that were written; %q is the first wrong one", len(got), space, len(want), firstDifference(got, want))
				}
			}
		},
	},
	{
		name: "bad keys",
		rule: "a key without a name, with one of more than 1,024 bytes or of an unknown space is refused with an error, and nothing of the call is written",
		run: func(h *harness) {
			good := driver.Write{Key: name("a"), Old: driver.IfEmpty, Value: []byte("1")}
			for _, k := range []driver.Key{name(""), name("%s", strings.Repeat("a", 1025)), name("%s", strings.Repeat("é", 800)), {Space: 5, Name: "a"}, {Space: 255, Name: "a"}} {
				bad := driver.Write{Key: k, Old: driver.IfEmpty, Value: []byte("1")}
				h.refused(bad)
				h.refused(good, bad)
				if _, err := h.store.Load(h.ctx, []driver.Key{k}, driver.Fresh); err == nil {
					h.Errorf("load of %s was answered", describe(k))
				}
			}
			h.same("a key of refused calls", h.load(good.Key), driver.Record{})
		},
	},
	{
		name: "keys",
		rule: "Keys lists at most n keys of a space that come after the given name, in byte order",
		run: func(h *harness) {
			var writes []driver.Write
			names := []string{"B", "a", "a\x00", "aa", "ab", "b", "é", "\x01", "\xff", "a/b", "a%", "a_", "Z"}
			for _, n := range names {
				for _, space := range spaces[:2] {
					writes = append(writes, driver.Write{Key: driver.Key{Space: space, Name: n}, Old: driver.IfEmpty, Value: []byte("1")})
				}
			}
			writes = append(writes, driver.Write{Key: driver.Key{Space: driver.Settings, Name: "c"}, Old: driver.IfEmpty, Value: []byte("1")})
			h.swapAll(writes...)
			slices.Sort(names)

			want := func(space driver.Space, after string, n int, want []string) {
				h.Helper()
				if got := h.keys(space, after, n); !slices.Equal(got, want) {
					h.Errorf("%d keys of space %s after %q are %q, want %q", n, space, after, got, want)
				}
			}
			want(driver.Names, "", 100, names)
			want(driver.Sessions, "", 100, names)
			want(driver.Settings, "", 100, []string{"c"})
			want(driver.Audits, "", 100, nil)
			want(driver.Histories, "", 100, nil)
			want(driver.Settings, "c", 100, nil)
			want(driver.Settings, "b\xff", 100, []string{"c"})
			want(driver.Names, "\xff", 100, nil)
			want(driver.Names, "", 0, nil)
			for i, n := range names {
				want(driver.Names, n, 100, names[i+1:])
				want(driver.Names, n, 2, names[i+1:min(i+3, len(names))])
			}
			for size := 1; size < 5; size++ {
				var all []string
				for after := ""; ; after = all[len(all)-1] {
					page := h.keys(driver.Names, after, size)
					if len(page) == 0 || len(all) > len(names) {
						break
					}
					all = append(all, page...)
				}
				if !slices.Equal(all, names) {
					h.Errorf("pages of %d list %q, want %q", size, all, names)
				}
			}
		},
	},
	{
		name: "keys that hold nothing",
		rule: "Keys leaves out those known to hold nothing",
		run: func(h *harness) {
			for i := range 6 {
				k := name("%d", i)
				held := h.put(k, "1")
				if i%2 == 0 {
					h.win(driver.Write{Key: k, Old: held.Version})
				}
			}
			if got, want := h.keys(driver.Names, "", 2), []string{"1", "3"}; !slices.Equal(got, want) {
				h.Errorf("the first 2 keys are %q, want %q", got, want)
			}
			h.put(name("2"), "1")
			if got, want := h.keys(driver.Names, "", 10), []string{"1", "2", "3", "5"}; !slices.Equal(got, want) {
				h.Errorf("keys are %q, want %q", got, want)
			}
		},
	},
}

func (h *harness) keys(space driver.Space, after string, n int) []string {
	h.Helper()
	names, err := h.store.Keys(h.ctx, space, after, n)
	if err != nil {
		h.Fatalf("keys: %v", err)
	}
	return names
}

// firstDifference returns the first name listed that should not be there.
func firstDifference(got, want []string) string {
	for i, n := range got {
		if i >= len(want) || n != want[i] {
			return n
		}
	}
	return ""
}

// strangeNames are what databases, drivers and file systems have taken for
// something else, or for each other. All are different.
var strangeNames = func() []string {
	names := []string{
		"a", "A", "a ", " a", "  a", "a  ", "a\x00", "\x00a", "a\x00b", "a\x00c", "\x00\x00", "a\t", "a\n", "a\r\n",
		"é", "e\u0301", "É", "ß", "ss", "SS", "ẞ", "ı", "i̇", "İ", "ﬁ", "fi", "K", "\u212a", "Å", "\u212b", "A\u030a",
		"\u00ad", "\u200b", "\ufeff", "\ufeffa", "a\ufeff", "\u202e", "\ufffd", "\U0001f512", "\U0010ffff",
		"\xff\xfe", "\xfe\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc3", "a\xc3", "\xa9", "a\xff", "a\xfe",
		"%%", "_a", "a_b", "a%b", "a?b", "a*b", "[a]", "''", `""`, `\\`, `\'`, `\x61`, `\0`, "';--", "$1", "?1", ":a", "@a", "{a}",
		"--", "/*", "*/", "//", "a/b", "a//b", "a/", "/a", "..", "../a", "a/..", "a:b", "a;b", "a,b", "a|b", "a=b", "a&b", "a b", "a+b", "%61", "%00", "%2F",
		"NULL", "null", "nil", "0", "00", "-0", "+0", "0x0", "1e0", "1", "01", "1.0", "-1", "true", "NaN", "CON", "nul", ".lock", ".tmp",
		"name", "session", "setting", "audit", "name a",
		strings.Repeat("a", 254), strings.Repeat("a", 255), strings.Repeat("a", 254) + "b", strings.Repeat("A", 255),
		strings.Repeat("\xff", 255), strings.Repeat("\x00", 255), strings.Repeat("\x00", 254), strings.Repeat("é", 127), strings.Repeat("/", 255),
		strings.Repeat("a", 256), strings.Repeat("a", 1023), strings.Repeat("a", 1024), strings.Repeat("a", 1023) + "b", strings.Repeat("A", 1024),
		strings.Repeat("\xff", 1024), strings.Repeat("\x00", 1024), strings.Repeat("\x00", 1023), strings.Repeat("名", 341), strings.Repeat("/", 1024),
	}
	for b := range 256 {
		if n := string([]byte{byte(b)}); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	all := make([]byte, 255)
	for i := range all {
		all[i] = byte(i)
	}
	names = append(names, string(all))
	for i := range all {
		all[i] = byte(i + 1)
	}
	return append(names, string(all))
}()
