package mysql

import (
	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/drivertest"

	"strings"
	"testing"
	"time"

	storeurl "github.com/holdfast-lock/holdfast/open"
)

// at understands a URL of a store.
func at(in string) (*driver.Location, error) { return storeurl.Parse(in, Kind) }

func TestURL(t *testing.T) {
	t.Setenv("MYSQL_PWD", "of the environment")
	for in, want := range map[string]string{
		"mysql://app:p%25w%2F@db/shop?readTimeout=3s":       "app p%w/ tcp db:3306 shop",
		"mysql://app@db:3307/shop":                          "app of the environment tcp db:3307 shop",
		"mysql://app:@[::1]/shop":                           "app  tcp [::1]:3306 shop",
		"mysql://app@[::1]:3308/a%2Fb?loc=Europe/Berlin":    "app of the environment tcp [::1]:3308 a/b",
		"mysql://app@/shop?socket=/run/mysqld/mysqld.sock":  "app of the environment unix /run/mysqld/mysqld.sock shop",
		"mysql://app@h/shop?socket=%2Frun%2Fmy.sock&tls=no": "",
	} {
		target, err := at(in)
		if err != nil {
			t.Fatal(err)
		}
		c, err := configOf(target)
		if want == "" {
			if err == nil {
				t.Errorf("%s: no error", in)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got := strings.Join([]string{c.User, c.Passwd, c.Net, c.Addr, c.DBName}, " "); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
		if !c.InterpolateParams || c.Timeout != 10*time.Second {
			t.Errorf("%s: got %+v", in, c)
		}
	}
	for in, want := range map[string]string{
		"mysql://app@db":                                "names no database",
		"mysql://app@db/shop?password=hunter2":          "MYSQL_PWD",
		"mysql://app@db/shop?tls=hunter2":               "the settings of mysql://app@db/shop cannot be used: ",
		"mysql://app@db/shop?timeout=soon":              "the settings of mysql://app@db/shop cannot be used: ",
		"mysql://app@db/shop?tls=true&serverPubKey=x&y": "the settings of mysql://app@db/shop cannot be used: ",
	} {
		target, err := at(in)
		if err == nil {
			_, err = configOf(target)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", in, err, want)
		}
	}
	// The name that a certificate must have is that of the URL.
	target, err := at("mysql://app@db.example/shop?tls=true")
	if err != nil {
		t.Fatal(err)
	}
	if c, err := configOf(target); err != nil || c.TLS == nil || c.TLS.ServerName != "db.example" || c.TLS.InsecureSkipVerify {
		t.Errorf("got %+v, %v", c, err)
	}
}

// The driver is given the password that stands in the URL, however odd it is, and nothing that
// is said shows it.
func FuzzURL(f *testing.F) {
	drivertest.FuzzKind(f, Kind, func(at *driver.Location) (string, error) {
		c, err := configOf(at)
		if err != nil {
			return "", err
		}
		return c.Passwd, nil
	})
}
