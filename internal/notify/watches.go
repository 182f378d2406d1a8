package notify

import (
	"context"
	"sync"

	"github.com/holdfast-lock/holdfast/driver"
)

// Watches are the calls of Watch that end when their store is closed. The zero value is ready.
type Watches struct {
	once sync.Once
	open context.Context
	end  context.CancelFunc
}

func (w *Watches) begin() {
	w.once.Do(func() { w.open, w.end = context.WithCancel(context.Background()) })
}

// Run calls watch with a context that ends with ctx, or when Close is called. From then on it
// returns driver.ErrClosed.
func (w *Watches) Run(ctx context.Context, watch func(context.Context) error) error {
	w.begin()
	if w.open.Err() != nil {
		return driver.ErrClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.open, cancel)()
	err := watch(ctx)
	if w.open.Err() != nil {
		return driver.ErrClosed
	}
	return err
}

// Close ends the watches. It does not wait for them.
func (w *Watches) Close() {
	w.begin()
	w.end()
}
