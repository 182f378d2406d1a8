package serve

import (
	"net/http"
	"strings"

	"github.com/holdfast-lock/holdfast"
	"github.com/holdfast-lock/holdfast/serve/access"
	"github.com/holdfast-lock/holdfast/serve/page"
)

// NewPage makes the page of a store, the Options.Page of a Handler: each principal sees and
// breaks what its verbs and prefixes allow. opts may be nil; its Viewer, Login and Logout are set
// here. a is the Access of the Handler's Options; nil: nobody logs in.
func NewPage(client *holdfast.Client, a *access.List, opts *page.Options) *page.Handler {
	var o page.Options
	if opts != nil {
		o = *opts
	}
	o.Viewer = func(r *http.Request) page.Viewer {
		p := access.PrincipalOf(r.Context())
		if p == nil || !p.Verbs.Has(access.Look) {
			return page.Viewer{Denied: true}
		}
		v := page.Viewer{Name: p.Name, Look: func(lock string) bool { return p.May(access.Look, lock) }, Configure: p.MayAll(access.Configure)}
		if p.Verbs.Has(access.Break) {
			v.Break = func(lock string) bool { return p.May(access.Break, lock) }
		}
		return v
	}
	if a != nil {
		o.Login = func(w http.ResponseWriter, r *http.Request, key string) bool {
			p, ok := a.Login(w, r, key)
			if !ok || !p.Verbs.Has(access.Look) {
				return false
			}
			http.Redirect(w, r, o.Prefix+"/"+strings.TrimLeft(r.PostFormValue("to"), "/\\"), http.StatusSeeOther)
			return true
		}
		o.Logout = func(w http.ResponseWriter, r *http.Request) {
			a.Logout(w, r)
			http.Redirect(w, r, o.Prefix+"/login", http.StatusSeeOther)
		}
	}
	return page.New(client, &o)
}
