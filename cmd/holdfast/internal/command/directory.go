package command

import (
	"context"
	"fmt"
	"strings"

	"github.com/holdfast-lock/holdfast/directory"
)

var directoryKind = kind{
	example:   "dir:/srv/locks",
	needsPath: true,
	settings:  []string{"allow"},
	open: func(_ context.Context, t target) (handle, error) {
		s, err := directory.New(t.path, t.allow...)
		if err != nil {
			return handle{}, err
		}
		return handle{s, s.Close}, nil
	},
	schemaText: func(t target) (string, error) {
		return fmt.Sprintf(directorySchema, strings.TrimSuffix(t.path, "/")), nil
	},
	migrate: func(_ context.Context, t target) error { return directory.Migrate(t.path) },
	verify:  func(_ context.Context, t target) error { return directory.Verify(t.path) },
}

const directorySchema = `# In the directory %[1]s, which has to be there, with its permissions:
cd %[1]s && mkdir tmp wake floor names sessions settings audits
# and the file holdfast.json, by which it is known to be a store and not a mount
# point without its mount. Only schema apply writes that.
`
