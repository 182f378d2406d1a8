package base

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-lock/holdfast/driver"
	"github.com/holdfast-lock/holdfast/internal/core/record"
)

// CheckName says what is wrong with the name of a lock. A name is 1 to 1,024
// bytes of UTF-8 without control characters, so that it can be shown, typed
// and passed in an environment as it is.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("name is empty")
	case len(name) > driver.MaxName:
		if n := 2 * (strings.Count(name, "%2F") + strings.Count(name, "%25")); n > 0 {
			return fmt.Errorf("name has %d bytes, at most %d; JoinName has added %d for each / and %% of its parts", len(name), driver.MaxName, n)
		}
		return fmt.Errorf("name has %d bytes, at most %d", len(name), driver.MaxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("name is not UTF-8: %q", name)
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("name %q has a control character", name)
	}
	return nil
}

// CheckLabels says what is wrong with the labels of a claim. It makes the map valid UTF-8.
func CheckLabels(labels record.Labels) (record.Labels, error) {
	for key, value := range labels {
		if key == "" {
			return nil, errors.New("a key of Labels is empty")
		}
		if k, v := strings.ToValidUTF8(key, "\uFFFD"), strings.ToValidUTF8(value, "\uFFFD"); k != key || v != value {
			delete(labels, key)
			labels[k] = v
		}
	}
	if n := record.SizeOf(labels); n > record.MaxLabels {
		return nil, fmt.Errorf("the labels take %d bytes as JSON, at most %d", n, record.MaxLabels)
	}
	return labels, nil
}
