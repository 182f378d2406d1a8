//go:build !linux && !darwin

package state

import (
	"errors"
	"fmt"
	"os"
	"runtime"
)

const plainly = 0

func openCacheDir(string) (*os.Root, error) {
	return nil, fmt.Errorf("there is none on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

func describe(*os.File) (fileInfo, error) { return fileInfo{}, errors.ErrUnsupported }
func busy(error) bool                     { return false }
func full(error) bool                     { return false }
