//go:build !linux

package main

import (
	"context"
	"errors"
)

func openJanusGraph(context.Context, *site, options) (locker, error) {
	return nil, errors.ErrUnsupported
}

func prepareJanusGraph(*bench) error { return nil }
