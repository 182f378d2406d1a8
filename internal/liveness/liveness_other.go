//go:build !linux

package liveness

import (
	"errors"
	"os"
)

// Off Linux there is no proof of life, and none of death: a process that cannot be seen counts as
// alive, and the TTL decides.

func kernelBoot() string                         { return "" }
func strangers(string) bool                      { return false }
func prepareProofDir(string) error               { return errors.ErrUnsupported }
func lockNew(_, _, _ string) (*os.File, error)   { return nil, errors.ErrUnsupported }
func openProof(_, _, _ string) (*os.File, error) { return nil, errors.ErrUnsupported }
func canLock(*os.File) bool                      { return false }
func named(*os.File) bool                        { return false }
func abandoned(string) bool                      { return false }
