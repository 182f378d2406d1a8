// Package tlsurl reads from a URL how connections to a store are encrypted, for databases whose
// clients take no URL: tls=verify or skip-verify, and the files ca, cert and key.
package tlsurl

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/printable"
)

// Settings are the settings in a URL's query, which may be those of this package and own, and
// the TLS configuration that follows; nil: unencrypted. others are further settings that the
// URL may have, for messages.
func Settings(at *driver.Location, own, others []string) (url.Values, *tls.Config, error) {
	settings, err := url.ParseQuery(at.Query)
	if err != nil {
		return nil, nil, driver.BadURL("the settings of %s cannot be read", at)
	}
	known := append(slices.Clone(own), "tls", "ca", "cert", "key")
	for key := range settings {
		switch {
		case driver.IsSecret(key):
			return nil, nil, driver.BadURL("%s: the password stands behind the user, or in %s_PASSWORD, not in %s=",
				at.Scheme, at.Kind.SendsPassword, printable.Quote(key))
		case !slices.Contains(known, key):
			all := append(known, others...)
			last := len(all) - 1
			return nil, nil, at.UnknownSetting(key, "there are "+strings.Join(all[:last], ", ")+" and "+all[last])
		}
	}
	c, err := config(at, settings)
	return settings, c, err
}

func config(at *driver.Location, settings url.Values) (*tls.Config, error) {
	ca, cert, key := settings.Get("ca"), settings.Get("cert"), settings.Get("key")
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	switch mode := settings.Get("tls"); {
	case mode == "" && ca+cert+key == "":
		return nil, nil
	case mode == "skip-verify":
		c.InsecureSkipVerify = true
	case mode != "verify" && mode != "":
		return nil, driver.BadURL("%s: tls is verify or skip-verify; ca, cert and key name files", at.Scheme)
	}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, at.BadSettings(err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, driver.BadURL("the settings of %s cannot be used: %s has no certificate", at, printable.Quote(ca))
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, driver.BadURL("the settings of %s cannot be used: cert and key: %s", at, at.Redact(err.Error()))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
