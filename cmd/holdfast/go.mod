module github.com/holdfast-lock/holdfast/cmd/holdfast

go 1.26.0

require (
	github.com/creack/pty v1.1.24
	github.com/holdfast-lock/holdfast v0.1.0
	github.com/holdfast-lock/holdfast/sqlite v0.1.0
	github.com/rogpeppe/go-internal v1.16.0
	github.com/spf13/cobra v1.10.2
	golang.org/x/sys v0.49.0
)
