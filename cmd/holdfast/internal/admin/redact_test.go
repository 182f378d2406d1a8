package admin

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lock/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-lock/holdfast/driver"
)

// Whatever is wrong with the URL of a store, or with the store, nothing that is
// said of it has its password.
func TestRedact(t *testing.T) {
	t.Setenv("PGPASSWORD", "hunter2-of-the-environment")
	t.Setenv("MYSQL_PWD", "hunter2-of-the-environment")
	t.Setenv("CASSANDRA_PASSWORD", "hunter2-of-the-environment")
	t.Setenv("PGCONNECT_TIMEOUT", "1")
	for _, in := range []string{
		"postgres://app:hunter2@127.0.0.1:1/shop",
		"postgresql://app:hunter2@127.0.0.1:1/shop",
		"postgres://app:%68unter2@127.0.0.1:1/shop",
		"postgres://app:x%2Fhunter2%40@127.0.0.1:1/shop",
		"postgres://:hunter2@127.0.0.1:1/",
		"postgres://app@127.0.0.1:1/shop?password=hunter2",
		"postgres://app@127.0.0.1:1/shop?password=%68unter2&sslmode=disable",
		"postgres://app@127.0.0.1:1/shop?pass%77ord=hunter2",
		"postgres://app@127.0.0.1:1/shop?sslpassword=hunter2&sslmode=nonsense",
		"postgres://app@127.0.0.1:1/shop?password=hunter2&port=nonsense",
		"postgres://app@127.0.0.1:1/shop?my.secret_token=hunter2",
		"postgres://app:hunter2@127.0.0.1:nonsense/shop",
		"postgres://app:hunter2/with@slash@127.0.0.1:1/shop",
		"postgres://app:1/hunter2@127.0.0.1:1/shop",
		"postgres://app:1?hunter2@127.0.0.1:1/shop",
		"postgres://app:1#hunter2@127.0.0.1:1/shop",
		"postgres://app:hunter2%zz@127.0.0.1:1/shop",
		"postgres://app:hunter2@127.0.0.1:1/shop?allow=%zz",
		"postgres://app:hunter2@127.0.0.1:1/shop?passfile=/no/such&sslrootcert=/no/such&sslmode=verify-full",
		"postgres://app:hunter2@127.0.0.1:1/shop?service=none",
		"postgres:host=127.0.0.1 port=1 password=hunter2",
		"host=127.0.0.1 port=1 user=app password=hunter2 dbname=shop",
		"host=127.0.0.1 password='hunter2 too:' dbname=shop",
		"mysql://app:hunter2@127.0.0.1:1/shop",
		"mysql://app:%68unter2@127.0.0.1:1/shop",
		"mysql://app:hunter2@127.0.0.1:1/",
		"mysql://app:hunter2@127.0.0.1:1/shop?tls=nonsense",
		"mysql://app:hunter2@127.0.0.1:nonsense/shop",
		"mysql://app@127.0.0.1:1/shop?password=hunter2",
		"mysql://app@127.0.0.1:1/shop?passwd=hunter2",
		"mysql://app:hunter2@tcp(127.0.0.1:1)/shop",
		"app:hunter2@tcp(127.0.0.1:1)/shop",
		"cassandra://app:hunter2@127.0.0.1:1/shop",
		"cassandra://app:%68unter2@127.0.0.1:1,127.0.0.2:1/shop",
		"cassandra://app:hunter2@127.0.0.1:nonsense/shop",
		"cassandra://app:hunter2@127.0.0.1:1/",
		"cassandra://app@127.0.0.1:1/shop?password=hunter2",
		"cassandra://app@127.0.0.1:1/shop?key_password=hunter2",
		"cassandra://app:hunter2@127.0.0.1:1/shop?cert=/no/such",
		"hunter2",
		"//app:hunter2@db/shop",
		"postgre://app:hunter2@db/shop",
	} {
		said := driver.Redact("dial " + in + ": refused")
		if in == "hunter2" || strings.Contains(in, "%77") || strings.Contains(in, "%zz") || strings.Contains(in, "token") {
			said = "" // only by its target
		}
		target, err := cli.ParseStore(in)
		if err == nil {
			said += " " + target.String() + " " + target.Redact(in)
			for _, secret := range []string{target.Password, "hunter2", "hunter2-of-the-environment"} {
				plain, _ := url.PathUnescape(secret)
				if strings.Contains(in, "hunter2") && secret == "hunter2" && !strings.Contains(in, ":hunter2@") {
					continue
				}
				said += target.Redact(" they said " + secret + " or " + plain)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err = target.Open(ctx)
			if err == nil {
				t.Fatalf("%s could be opened", in)
			}
			d := &checkup{}
			d.fail("store", "%s: %s", target, target.Cause(err))
			var b strings.Builder
			d.write(&b, true)
			d.write(&b, false)
			err = target.Unusable(err, "; nothing was run")
			said += " " + b.String()
			cancel()
		}
		if err == nil {
			t.Fatalf("%s: no error", in)
		}
		said += " " + err.Error()
		for _, secret := range []string{"hunter2", "%68unter2", "unter2"} {
			if strings.Contains(said, secret) {
				t.Errorf("%s: said %s", in, said)
				break
			}
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: more than a line: %q", in, err)
		}
	}
	// What is shown anyway is no secret: to hide it would tell that it is one.
	target, err := cli.ParseStore("postgres://app:app@db/shop")
	if got := target.Redact(`password authentication failed for user "app"`); err != nil || !strings.Contains(got, `"app"`) {
		t.Errorf("got %s, %v", got, err)
	}
}
