package main

import (
	"context"
	"errors"

	"github.com/holdfast-lock/holdfast/cassandra"
	"github.com/holdfast-lock/holdfast/claims"
)

// claimsStore is Cassandra as a store without compare-and-swap.
const claimsStore = "claims"

const claimsMeans = "three nodes, QUORUM; waits 100 ms for the writes of others"

var claimsSystems = []*system{
	{
		store: claimsStore, name: "JanusGraph", of: "JanusGraph", in: "latency handoff", disk: bothWait,
		means: claimsMeans + "; its ConsistentKeyLocker in a JVM of its own, tried again at once when another has the lock", open: openJanusGraph,
	}, {
		store: claimsStore, name: "claims", of: "JanusGraph", in: "latency handoff", disk: bothWait,
		means: claimsMeans + ", and another 100 ms for the difference of clocks", open: openClaims,
	},
}

const claimsTable = "claims"

type claimsLocker struct {
	l    *claims.Locker
	shut func()
}

func openClaims(ctx context.Context, at *site, o options) (locker, error) {
	config, err := cassandraConfig(at.Cassandra)
	if err != nil {
		return nil, err
	}
	session, err := cassandraSession(at)
	if err != nil {
		return nil, err
	}
	columns, err := cassandra.NewColumns(ctx, session, config.Keyspace, claimsTable)
	if err == nil {
		var l *claims.Locker
		if l, err = claims.New(columns, nil); err == nil {
			return &claimsLocker{l, session.Close}, nil
		}
	}
	session.Close()
	return nil, err
}

var claimsColumn = []byte("lock")

func (c *claimsLocker) lock(ctx context.Context, name string) (held, error) {
	l, err := c.l.Acquire(ctx, []byte(name), claimsColumn)
	if err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	return unlocker(func() error { return l.Release(context.WithoutCancel(ctx)) }), nil
}

func (c *claimsLocker) close() error {
	defer c.shut()
	return c.l.Close(context.Background())
}

// startClaims makes the table for claims in the cluster that startCassandra has
// started, or in one of its own.
func startClaims(b *bench) (*server, error) {
	s := &server{}
	var err error
	if cluster := b.servers["cassandra"]; cluster != nil {
		s.tally = cluster.tally
	} else if s, err = startCassandra(b); err != nil {
		return nil, err
	}
	s.requests, s.kinds = nil, nil // JanusGraph's are not counted
	err = func() error {
		config, err := cassandraConfig(b.site.Cassandra)
		if err != nil {
			return err
		}
		session, err := config.CreateSession()
		if err != nil {
			return err
		}
		defer session.Close()
		if err := cassandra.MigrateColumns(b.ctx, session, config.Keyspace, claimsTable); err != nil {
			return err
		}
		return prepareJanusGraph(b)
	}()
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}
