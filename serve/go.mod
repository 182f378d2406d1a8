module github.com/holdfast-lock/holdfast/serve

go 1.26.0

require github.com/holdfast-lock/holdfast v0.1.0

require golang.org/x/sys v0.49.0 // indirect
