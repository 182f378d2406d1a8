//go:build !unix

package main

import (
	"errors"
	"os"
	"time"
)

// monotonic stands in for a clock that all processes share.
func monotonic() int64 { return time.Now().UnixNano() }

func share(*os.File, int) ([]byte, error) { return nil, errors.ErrUnsupported }

func flock(*os.File) error { return errors.ErrUnsupported }

func tryFlock(*os.File) bool { return false }

func unflock(*os.File) error { return errors.ErrUnsupported }

func cpuTime() time.Duration { return 0 }

func (p *player) freeze() (int64, error) { return 0, errors.ErrUnsupported }
