package access

import (
	"context"
	"net"
	"os/user"
	"strconv"
)

// A peer is the user at the other end of a unix socket.
type peer struct {
	uid  uint32
	own  bool // it is the user of this process
	name string
}

type peerKey struct{}

// WithPeer puts the user at the other end of a unix socket into the context of a connection, as
// http.Server.ConnContext makes it. Where KnowsPeers is false, that user is taken to be that of
// this process, so the mode of the socket or of its directory has to keep others out.
func WithPeer(ctx context.Context, c *net.UnixConn) context.Context {
	p, ok := peerOf(c)
	if !ok {
		return ctx
	}
	p.name = userName(p.uid)
	return context.WithValue(ctx, peerKey{}, p)
}

// userName is what a user is called.
func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return "uid" + id
}

// peer is the principal at the other end of a unix socket. The user of this process and root may do
// everything: they could open the store without us.
func (a *List) peer(p peer) *Principal {
	if p.uid == 0 || p.own {
		return &Principal{Name: p.name, Verbs: Everything, Prefixes: []string{""}, proof: byOwner}
	}
	if l, ok := a.find("unix", p.name); ok {
		return l.as(byPeer)
	}
	return nil
}
