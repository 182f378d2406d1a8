package sqlstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-lock/holdfast/driver"
)

// Grants are the statements that let a role use the tables, or with readOnly look at them: the
// text "grants" or "grants to look", after "grant usage" if there is such a text and the tables are
// in a schema. $role and $schema stand for names; role is quoted as the database wants it.
func Grants(t Tables, quote string, texts map[string]string, role string, readOnly bool) ([]string, error) {
	if strings.Trim(role, quote) == "" || strings.Contains(role, "\x00") {
		return nil, errors.New("a role needs a name")
	}
	text := texts["grants"]
	if readOnly {
		text = texts["grants to look"]
	}
	if usage, ok := texts["grant usage"]; ok && t.Schema != "" {
		text = strings.ReplaceAll(usage, "$schema", Quote(t.Schema, quote)) + "\n" + text
	}
	statements := Statements(t.Expand(text, quote))
	for i, s := range statements {
		statements[i] = strings.ReplaceAll(s, "$role", role)
	}
	return statements, nil
}

// Quote quotes a name, whatever is in it.
func Quote(name, quote string) string {
	return quote + strings.ReplaceAll(name, quote, quote+quote) + quote
}

// NotGranted is the error of a role that may not read, or not write, the tables.
func NotGranted(role, right string, t Tables, err error) error {
	return &driver.RightsError{Role: role, What: fmt.Sprintf("may not %s the tables of %q", right, t), Err: err}
}
