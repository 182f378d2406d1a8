module github.com/holdfast-lock/holdfast/cassandra

go 1.26.0

require (
	github.com/apache/cassandra-gocql-driver/v2 v2.1.2
	github.com/holdfast-lock/holdfast v0.1.0
)

require (
	golang.org/x/sys v0.49.0 // indirect
	gopkg.in/inf.v0 v0.9.1 // indirect
)
