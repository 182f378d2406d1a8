module github.com/holdfast-lock/holdfast/mysql

go 1.26.0

require github.com/holdfast-lock/holdfast v0.1.0
