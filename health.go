package holdfast

import (
	"context"
	"fmt"
	"time"
)

// Healthy is nil while this client can take locks and keep those that it has. It does no I/O while
// heartbeats are answered; without a session it reads a setting of the store. The error says what
// is wrong: the client is closed, the store does not answer, or heartbeats have not been answered
// for so long that less than a quarter of the TTL is left. It does not look at locks with MinHold,
// which have sessions of their own.
func (c *Client) Healthy(ctx context.Context) error {
	c.mu.Lock()
	closing, s := c.end.closing, c.sess
	var ttl time.Duration
	if s != nil {
		ttl = s.life.TTL()
	}
	c.mu.Unlock()
	switch {
	case closing:
		return ErrClosed
	case s == nil || ttl == 0:
		_, err := c.StoreTTL(ctx)
		return err
	}
	if left := s.left(); left < ttl/4 {
		return fmt.Errorf("heartbeats are not answered: in %v all locks of this client are lost", max(left, 0).Round(time.Millisecond))
	}
	return nil
}
