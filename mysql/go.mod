module github.com/holdfast-lock/holdfast/mysql

go 1.26.0

require (
	github.com/go-sql-driver/mysql v1.10.1
	github.com/holdfast-lock/holdfast v0.1.0
)

require (
	filippo.io/edwards25519 v1.2.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
