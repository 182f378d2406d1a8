package sqlstore

import (
	"errors"
	"strings"
)

// Grants are the statements of a text, with $role for the role, that let it use the tables.
// role is quoted as the database wants it.
func Grants(t Tables, quote, text, role string) ([]string, error) {
	if strings.Trim(role, quote) == "" || strings.Contains(role, "\x00") {
		return nil, errors.New("a role needs a name")
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
