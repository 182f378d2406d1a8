package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

const (
	redisDisk  = "each write"
	redisMeans = "appendonly yes, appendfsync always; by default redis waits for no disk"
)

var redisSystems = []*system{
	{
		store: "redis", name: "SET, DEL", of: "SET, DEL", in: "latency throughput",
		disk: redisDisk, means: redisMeans,
		open: func(ctx context.Context, at *site, o options) (locker, error) {
			return &redisFloor{redisClient(at, o)}, nil
		},
	}, {
		store: "redis", name: "redislock", of: "SET, DEL", in: "latency throughput handoff held crash waiters",
		disk: redisDisk, means: redisMeans + "; tries again each 100 ms, TTL 10s",
		open: func(ctx context.Context, at *site, o options) (locker, error) {
			return openRedislock(at, o, 100*time.Millisecond), nil
		},
	}, {
		store: "redis", name: "redislock, tries each 10 ms", of: "redislock", in: "handoff",
		disk: redisDisk, means: redisMeans + "; tries again each 10 ms, TTL 10s",
		open: func(ctx context.Context, at *site, o options) (locker, error) {
			return openRedislock(at, o, 10*time.Millisecond), nil
		},
	}, {
		store: "redis", name: "redsync", of: "SET, DEL", in: "latency throughput handoff held crash waiters",
		disk: redisDisk, means: redisMeans + "; defaults: tries again after 50 to 250 ms, expiry 8s; begun anew after 32 tries",
		open: openRedsync,
	},
}

func redisClient(at *site, o options) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: at.Redis, PoolSize: o.Conns})
}

type redisFloor struct{ c *redis.Client }

func (f *redisFloor) lock(ctx context.Context, name string) (held, error) {
	if err := f.c.Set(ctx, name, bareValue, 0).Err(); err != nil {
		return nil, err
	}
	return unlocker(func() error { return f.c.Del(context.WithoutCancel(ctx), name).Err() }), nil
}

func (f *redisFloor) close() error { return f.c.Close() }

// renewing calls renew each third of a TTL until stopped.
func renewing(ttl time.Duration, renew func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(ttl / 3)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				renew(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

type redisLocker struct {
	c     *redis.Client
	locks *redislock.Client
	retry time.Duration
	o     options
}

func openRedislock(at *site, o options, retry time.Duration) locker {
	if o.TTL == 0 {
		o.TTL = 10 * time.Second
	}
	c := redisClient(at, o)
	return &redisLocker{c, redislock.New(c), retry, o}
}

func (r *redisLocker) lock(ctx context.Context, name string) (held, error) {
	// Without a deadline it gives up after a TTL.
	waits, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	l, err := r.locks.Obtain(waits, name, r.o.TTL, &redislock.Options{RetryStrategy: redislock.LinearBackoff(r.retry)})
	if err != nil {
		return nil, err
	}
	stop := func() {}
	if r.o.Keep {
		stop = renewing(r.o.TTL, func(ctx context.Context) { l.Refresh(ctx, r.o.TTL, nil) })
	}
	return unlocker(func() error { stop(); return l.Release(context.WithoutCancel(ctx)) }), nil
}

func (r *redisLocker) close() error { return r.c.Close() }

type redsyncLocker struct {
	c *redis.Client
	r *redsync.Redsync
	o options
}

func openRedsync(ctx context.Context, at *site, o options) (locker, error) {
	c := redisClient(at, o)
	return &redsyncLocker{c, redsync.New(goredis.NewPool(c)), o}, nil
}

func (r *redsyncLocker) lock(ctx context.Context, name string) (held, error) {
	var opts []redsync.Option
	if r.o.TTL > 0 {
		opts = append(opts, redsync.WithExpiry(r.o.TTL))
	}
	m := r.r.NewMutex(name, opts...)
	for {
		err := m.LockContext(ctx)
		if err == nil {
			break
		}
		var taken *redsync.ErrTaken
		if ctx.Err() != nil || !errors.Is(err, redsync.ErrFailed) && !errors.As(err, &taken) {
			return nil, errors.Join(ctx.Err(), err)
		}
	}
	stop := func() {}
	if r.o.Keep {
		stop = renewing(r.o.TTL, func(ctx context.Context) { m.ExtendContext(ctx) })
	}
	return unlocker(func() error {
		stop()
		_, err := m.UnlockContext(context.WithoutCancel(ctx))
		return err
	}), nil
}

func (r *redsyncLocker) close() error { return r.c.Close() }
