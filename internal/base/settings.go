package base

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// TTLKey is the key of the setting "ttl".
var TTLKey = driver.Settings.Key("ttl")

// A TTLSetting is its value.
type TTLSetting struct {
	TTL int64 `json:"ttl"` // milliseconds
}

// ReadTTL reads the setting ttl, and in the same call the setting history. A stale read is enough
// for a heartbeat: a session is declared dead by the TTL in its own record.
func (c *Base) ReadTTL(ctx context.Context, how driver.Freshness) (time.Duration, error) {
	recs, err := c.Store.Load(ctx, []driver.Key{TTLKey, HistoryKey}, how)
	if err != nil {
		return 0, fmt.Errorf("read the setting ttl: %w", err)
	}
	c.sawHistorySetting(recs[1])
	c.Mu.Lock()
	c.Answers = true
	c.Mu.Unlock()
	return ttlOf(recs[0])
}

func ttlOf(rec driver.Record) (time.Duration, error) {
	if len(rec.Value) == 0 {
		return record.DefaultTTL, nil
	}
	var s TTLSetting
	if err := json.Unmarshal(rec.Value, &s); err != nil {
		return 0, fmt.Errorf("the setting ttl is %q: %w", rec.Value, err)
	}
	ttl := time.Duration(s.TTL) * time.Millisecond
	if ttl < record.MinTTL || ttl > record.MaxTTL || ttl.Milliseconds() != s.TTL {
		return 0, fmt.Errorf("the setting ttl is %d ms, which is not between %v and %v", s.TTL, record.MinTTL, record.MaxTTL)
	}
	return ttl, nil
}

// followTTL is the store's setting of the TTL, or the present one if it cannot be read in time.
func (c *Base) followTTL(ctx context.Context, ttl, within time.Duration) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if set, err := c.ReadTTL(ctx, driver.Stale); err == nil {
		ttl = set
	}
	return ttl
}

// HistoryKey is the key of the setting "history".
var HistoryKey = driver.Settings.Key("history")

// A HistorySetting is its value.
type HistorySetting struct {
	History int `json:"history"`
}

// listedHolds is how many holds a history lists unless the store's setting says otherwise.
const listedHolds = 32

// HistoryOf is how many holds a history lists by the setting.
func (c *Base) HistoryOf(rec driver.Record) (int, error) {
	if len(rec.Value) == 0 {
		if c.Traits.CostlyWrites {
			return 0, nil
		}
		return listedHolds, nil
	}
	var s HistorySetting
	if err := json.Unmarshal(rec.Value, &s); err != nil {
		return 0, fmt.Errorf("the setting history is %q: %w", rec.Value, err)
	}
	if err := CheckHistory(s.History); err != nil {
		return 0, fmt.Errorf("the setting history is wrong: %w", err)
	}
	return s.History, nil
}

// CheckHistory says what is wrong with a number of holds that a history is to list.
func CheckHistory(holds int) error {
	if holds != 0 && holds != listedHolds && holds != record.MaxHistory {
		return fmt.Errorf("%d is neither 0 (off) nor %d nor %d", holds, listedHolds, record.MaxHistory)
	}
	return nil
}

func (c *Base) sawHistorySetting(rec driver.Record) {
	most, _ := c.HistoryOf(rec) // an invalid setting: off
	c.Mu.Lock()
	defer c.Mu.Unlock()
	c.unwritten.most, c.unwritten.read = most, c.Now()
}

// FollowHistory reads the setting now and then, for a client whose heartbeats do not; c.Mu is
// held.
func (c *Base) FollowHistory() {
	if t := c.Now(); c.Opts.TTL == 0 || t.Sub(c.unwritten.read) < settingIsGood || c.Ctx.Err() != nil {
		return
	}
	c.unwritten.read = c.Now()
	c.Spawn(func() {
		ctx, cancel := context.WithTimeout(c.Ctx, core.TryPatience)
		defer cancel()
		if recs, err := c.Store.Load(ctx, []driver.Key{HistoryKey}, driver.Stale); err == nil {
			c.sawHistorySetting(recs[0])
		}
	})
}
