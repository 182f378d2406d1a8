package holdfast

// An afterwards is work deferred until the client's mutex is released: no goroutine is woken, and
// no function of the user is called, while it is held.
type afterwards struct {
	first *request   // the first to be woken
	crowd []*request // the others
	calls []func()
}

func (a *afterwards) wake(r *request) {
	if a.first == nil {
		a.first = r
	} else {
		a.crowd = append(a.crowd, r)
	}
}

func (a *afterwards) call(f func()) { a.calls = append(a.calls, f) }

// do wakes the goroutines, and then makes the calls.
func (a *afterwards) do() {
	if a.first != nil {
		a.first.wake()
	}
	for _, r := range a.crowd {
		r.wake()
	}
	for _, f := range a.calls {
		f()
	}
}

// unlock releases mu, and then does the deferred work.
func (c *Client) unlock() {
	if c.after.first == nil && len(c.after.calls) == 0 {
		c.mu.Unlock()
		return
	}
	after := c.after
	c.after = afterwards{}
	c.mu.Unlock()
	after.do()
}
