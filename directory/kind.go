package directory

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-lock/holdfast/driver"
)

// Kind is a directory store by its URL: dir:/srv/locks.
var Kind = &driver.Kind{
	Name: "directory", Schemes: []string{"dir"}, Form: "dir:PATH", Example: "dir:/srv/locks",
	NeedsPath: true, Settings: []string{"allow"},
	Open: func(_ context.Context, at *driver.Location) (driver.Store, func() error, error) {
		allow := slices.Clone(at.Allow)
		if at.ReadOnly {
			allow = append(allow, ReadOnly)
		}
		s, err := New(at.Path, allow...)
		if err != nil {
			return nil, nil, err
		}
		return s, s.Close, nil
	},
	Schema: func(at *driver.Location) (string, error) {
		return fmt.Sprintf(schemaText, strings.TrimSuffix(at.Path, "/")), nil
	},
	Migrate: func(_ context.Context, at *driver.Location) error { return Migrate(at.Path) },
	Verify:  func(_ context.Context, at *driver.Location) error { return Verify(at.Path) },
}

const schemaText = `# In the directory %[1]s, which has to be there, with its permissions:
cd %[1]s && mkdir tmp wake floor names sessions settings audits histories
# and the file holdfast.json, by which it is known to be a store and not a mount
# point without its mount. Only schema apply writes that.
`
