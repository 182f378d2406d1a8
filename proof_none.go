//go:build !unix

package holdfast

import (
	"errors"
	"os"
)

func prepareProofDir(string) error             { return errors.ErrUnsupported }
func lockNew(string, string) (*os.File, error) { return nil, errors.ErrUnsupported }
func openProof(string) (*os.File, error)       { return nil, errors.ErrUnsupported }
func canLock(*os.File) bool                    { return false }
func named(*os.File) bool                      { return false }
