//go:build !unix

package cli

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
)

// replace runs a program with the same arguments, and ends as it does.
func replace(path string) error {
	c := exec.Command(path, os.Args[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	signal.Ignore(os.Interrupt) // it is for that program
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	os.Exit(c.ProcessState.ExitCode())
	return nil
}
