package mysql

import (
	"sync"
	"testing"
)

// Transactions of one process that fence the same lock at the same time wait for
// each other, and do not deadlock.
func TestFenceCrowd(t *testing.T) {
	s := fresh(t, way{})
	db := application(t, s, "")
	hold(t, s, "a", `{"holders":[{"session":"a","slots":1,"token":7}]}`)
	for form, fence := range fences {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 50 {
					tx, err := db.BeginTx(t.Context(), nil)
					if err != nil {
						t.Error(err)
						return
					}
					if err := fence(t.Context(), tx, "a", 7); err != nil {
						t.Errorf("%s: %v", form, err)
					}
					tx.Rollback()
				}
			})
		}
		wg.Wait()
	}
}
