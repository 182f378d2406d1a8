package holdfast

// Afterwards is what is to be done when the client's mutex has been released: nobody is woken and
// nothing of the user's is called while it is held.
type afterwards struct {
	first *request   // to be woken
	crowd []*request // and those after it
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

// do does all of it, first the wake-ups.
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

// unlock releases mu, then does what had to wait for that.
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
