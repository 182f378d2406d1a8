package base

// A waker has a goroutine that waits.
type waker interface{ Wake() }

// An afterwards is work deferred until the client's mutex is released: no goroutine is woken, and
// no function of the user is called, while it is held.
type afterwards struct {
	first waker   // the first to be woken
	crowd []waker // the others
	calls []func()
}

// Wake wakes r later.
func (a *afterwards) Wake(r waker) {
	if a.first == nil {
		a.first = r
	} else {
		a.crowd = append(a.crowd, r)
	}
}

// Call calls f later.
func (a *afterwards) Call(f func()) { a.calls = append(a.calls, f) }

// do wakes the goroutines, and then makes the calls.
func (a *afterwards) do() {
	if a.first != nil {
		a.first.Wake()
	}
	for _, r := range a.crowd {
		r.Wake()
	}
	for _, f := range a.calls {
		f()
	}
}

// Unlock releases c.Mu, and then does the deferred work.
func (c *Base) Unlock() {
	if c.After.first == nil && len(c.After.calls) == 0 {
		c.Mu.Unlock()
		return
	}
	after := c.After
	c.After = afterwards{}
	c.Mu.Unlock()
	after.do()
}
