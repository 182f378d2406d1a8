module github.com/holdfast-lock/holdfast/postgres

go 1.26.0

require (
	github.com/holdfast-lock/holdfast v0.1.0
	github.com/jackc/pgx/v5 v5.12.0
)
