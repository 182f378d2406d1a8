package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/holdfast-lock/holdfast/verify/janusgraph"
)

// A janusLocker is JanusGraph's own locker, which has one transaction at a time
// and does not wait for a lock.
type janusLocker struct {
	mu sync.Mutex
	l  *janusgraph.Locker
}

func openJanusGraph(ctx context.Context, at *site, o options) (locker, error) {
	dir, err := os.MkdirTemp(at.Dir, "janusgraph-")
	if err != nil {
		return nil, err
	}
	program, err := janusgraph.Build(ctx, dir)
	if err != nil {
		return nil, err
	}
	l, err := program.Start(ctx, at.Cassandra, janusgraph.Settings{Rid: fmt.Sprintf("bench-%d", os.Getpid()), Table: "janusgraph_lock"})
	if err != nil {
		return nil, err
	}
	return &janusLocker{l: l}, nil
}

func (j *janusLocker) lock(ctx context.Context, name string) (held, error) {
	j.mu.Lock()
	for ctx.Err() == nil {
		_, err := j.l.Lock([]byte(name), claimsColumn)
		var failure *janusgraph.Failure
		switch {
		case err == nil:
			return unlocker(func() error {
				defer j.mu.Unlock()
				_, err := j.l.Delete()
				return err
			}), nil
		case !errors.As(err, &failure):
			j.mu.Unlock()
			return nil, err
		}
	}
	j.mu.Unlock()
	return nil, ctx.Err()
}

func (j *janusLocker) close() error { return j.l.Close() }

// prepareJanusGraph has it make its table, before several do at once.
func prepareJanusGraph(b *bench) error {
	l, err := openJanusGraph(b.ctx, &b.site, options{})
	if err != nil {
		return err
	}
	return l.close()
}
