package access

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Verbs are what a principal may do, as a set.
type Verbs uint8

// Take acquires and releases, Look lists and shows, Break ends holds of others, Configure changes
// the settings of the store, Metrics reads the metrics.
const (
	Take Verbs = 1 << iota
	Look
	Break
	Configure
	Metrics
	Everything = Take | Look | Break | Configure | Metrics
)

var verbNames = []string{"take", "look", "break", "configure", "metrics"}

// String is the verbs as the tokens file has them: take,look.
func (v Verbs) String() string {
	var names []string
	for i, name := range verbNames {
		if v&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// ParseVerbs reads verbs as the tokens file has them.
func ParseVerbs(s string) (Verbs, error) {
	var v Verbs
	for name := range strings.SplitSeq(s, ",") {
		i := slices.Index(verbNames, name)
		if i < 0 {
			return 0, fmt.Errorf("unknown verb %q: there are %s", name, strings.Join(verbNames, ", "))
		}
		v |= 1 << i
	}
	return v, nil
}

// Has reports whether v has all of some verbs.
func (v Verbs) Has(some Verbs) bool { return v&some == some }

// A Principal is whoever makes a request.
type Principal struct {
	Name     string
	Verbs    Verbs
	Prefixes []string // of the lock names that it may use; "": all names

	proof proof // how it was recognised
}

// May reports whether p may use a verb on a name.
func (p *Principal) May(v Verbs, name string) bool {
	return p.Verbs.Has(v) && slices.ContainsFunc(p.Prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// MayAll reports whether p may use a verb on every name.
func (p *Principal) MayAll(v Verbs) bool { return p.Verbs.Has(v) && slices.Contains(p.Prefixes, "") }

type principalKey struct{}

// WithPrincipal says who a request is from. The Handler of package serve believes it.
func WithPrincipal(ctx context.Context, p *Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalOf returns who a request is from; nil if that is not known.
func PrincipalOf(ctx context.Context) *Principal {
	p, _ := ctx.Value(principalKey{}).(*Principal)
	return p
}

// proof is how a principal was recognised.
type proof int

const (
	byProgram proof = iota // WithPrincipal
	bySecret
	byCertificate
	byPeer
	byCookie
	byOwner // the user of this process, or root, at the unix socket
)

// ByCookie reports whether a cookie was the proof, which a browser sends by itself.
func (p *Principal) ByCookie() bool { return p.proof == byCookie }

// Limited reports whether the requests of p are counted: not if p could do without us.
func (p *Principal) Limited() bool { return p.proof != byProgram && p.proof != byOwner }
