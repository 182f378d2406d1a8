module github.com/holdfast-lock/holdfast/verify

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/holdfast-lock/holdfast v0.1.0
	github.com/holdfast-lock/holdfast/sqlite v0.1.0
	golang.org/x/sys v0.49.0
)

require (
	github.com/creack/pty v1.1.24
	github.com/dustin/go-humanize v1.1.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/ncruces/go-strftime v1.1.0 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	modernc.org/libc v1.79.0 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
	modernc.org/sqlite v1.61.1 // indirect
)
