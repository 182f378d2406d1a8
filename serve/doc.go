// Package serve lets programs in any language take locks over HTTP. It keeps no state of its own:
// any number of replicas serve one store, behind any load balancer. A replica that is killed loses
// no lock and gives none away early, and those who wait in line keep their places.
//
// [New] is the API, an http.Handler. It does not decide who a request comes from: that is in the
// context of the request, as an [access.Principal] with the verbs and the names that it may use. An
// [access.List] in [Options.Access] finds out who it is: by a secret of the tokens file, the key of
// a link, a client certificate, the peer of a unix socket, or the cookie of a page's login. A
// program that has its own way to know its users calls [access.WithPrincipal] instead. A page
// shares all of this: it is served behind the same check, as [Options.Page], asks
// [access.PrincipalOf] what to show, and logs people in with [access.List.Login].
//
// A [Server] listens: on a unix socket, on loopback, or beyond it with TLS. It is what the command
// `holdfast serve` runs. Mount the Handler as the whole of a server rather than below an
// http.ServeMux: a mux redirects a//b to a/b, which is another lock.
package serve
