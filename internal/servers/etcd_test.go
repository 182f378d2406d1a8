package servers

import (
	"testing"
	"time"
)

// A leader that is cut off from the others, killed or frozen is followed by another
// one, and is a member again when it can be.
func TestEtcdLeader(t *testing.T) {
	t.Parallel()
	c := EtcdThree(t, &ClusterOptions{Cuttable: true})
	for _, how := range []struct {
		name       string
		fail, mend func(n int) error
	}{
		{"parted", c.Part, c.Join},
		{"cut off", c.CutOff, c.Join},
		{"killed", c.Kill, func(n int) error { return c.Restart(t.Context(), n) }},
		{"frozen", c.Freeze, c.Thaw},
	} {
		t.Run(how.name, func(t *testing.T) {
			if err := c.Settled(t.Context()); err != nil {
				t.Fatal(err)
			}
			old, err := c.Leader(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := how.fail(old); err != nil {
				t.Fatal(err)
			}
			for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
				for n := range Nodes { // by what one says: those who are gone say nothing
					if n == old {
						continue
					}
					if leader, ok := c.leads(t.Context(), n); ok && leader != old {
						if err := how.mend(old); err != nil {
							t.Fatal(err)
						}
						if err := c.Settled(t.Context()); err != nil {
							t.Fatal(err)
						}
						return
					}
				}
				if time.Since(began) > 20*time.Second {
					t.Fatal("no other member leads")
				}
			}
		})
	}
	for n := range Nodes {
		if err := c.Compact(t.Context(), n); err != nil && n == 0 {
			t.Error(err)
		}
		if err := c.Defragment(t.Context(), n); err != nil {
			t.Error(err)
		}
	}
}
