package serve

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/serve/access"
)

// What Terraform and OpenTofu send for the lock of a state, as their backend "http" does.
func TestTerraform(t *testing.T) {
	inTime(t, func(t *testing.T, a, b *replica) {
		const at = "/v1/terraform/tf/network"
		info := func(n int, who string) string {
			return fmt.Sprintf(`{"ID":"5a1dfd9c-3f0e-4b5c-9c3b-0d6f1f0a0a%02d","Operation":"OperationTypeApply","Info":"","Who":%q,"Version":"1.9.0","Created":"2026-11-25T07:00:00Z","Path":"","Later":1}`, n, who)
		}
		ci := &access.Principal{Name: "ci", Verbs: access.Take, Prefixes: []string{"tf/"}}
		a.do(ci, "LOCK", at+"?for=1h", info(1, "ana@laptop")).want(t, 200)
		b.do(ci, "LOCK", at+"?for=1h", info(1, "ana@laptop")).want(t, 200) // sent again
		b.do(ci, "LOCK", at, info(2, "ben@ci")).want(t, 423).is(t, "ID", "5a1dfd9c-3f0e-4b5c-9c3b-0d6f1f0a0a01").
			is(t, "Operation", "OperationTypeApply").is(t, "Info", "terraform apply").is(t, "Who", "ana@laptop")
		if l, err := a.client.Show(t.Context(), "tf/network"); err != nil || len(l.Holders) != 1 || l.Holders[0].Owner.Program != "terraform" {
			t.Errorf("shown as %+v, %v", l, err)
		}
		b.do(ci, "UNLOCK", at, info(2, "ben@ci")).want(t, 200) // never had it
		a.do(ci, "UNLOCK", at, info(1, "ana@laptop")).want(t, 200)
		a.do(ci, "UNLOCK", at, info(1, "ana@laptop")).want(t, 200)
		b.do(ci, "POST", at, info(3, "no address")).want(t, 200)

		// force-unlock sends no body.
		a.do(ci, "UNLOCK", at, "").want(t, 403)
		begun := time.Now()
		a.do(all, "UNLOCK", at, "").want(t, 200)
		if took := time.Since(begun); took > time.Second {
			t.Errorf("force-unlock took %v", took)
		}
		a.do(ci, "LOCK", at+"?for=90s", info(4, "ana@laptop")).want(t, 200)
		time.Sleep(85 * time.Second)
		b.do(ci, "LOCK", at, info(5, "ben@ci")).want(t, 423)
		time.Sleep(20 * time.Second) // it ends by itself
		b.do(ci, "LOCK", at, info(5, "ben@ci")).want(t, 200)
		b.do(ci, "DELETE", at, info(5, "ben@ci")).want(t, 200)

		lock, err := a.client.Acquire(t.Context(), "tf/network")
		if err != nil {
			t.Fatal(err)
		}
		a.do(ci, "LOCK", at, info(6, "ben@ci")).want(t, 423).is(t, "ID", lock.Token())

		for path, body := range map[string]string{
			at:                       `{"ID":"15"}`,
			at + "?for=1%20h":        info(7, ""),
			at + "?for=1ms":          info(7, ""),
			at + "?for=1000000h":     info(7, ""),
			"/v1/terraform/tf/other": `[]`,
		} {
			a.do(ci, "POST", path, body).want(t, 400)
		}
		a.do(ci, "LOCK", "/v1/terraform/other", info(8, "")).want(t, 403)
	})
}
