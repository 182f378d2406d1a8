package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// This program, started again with a role, is another process of a workload.
const (
	roleVariable = "HOLDFAST_BENCH_ROLE"
	dirVariable  = "HOLDFAST_BENCH_DIR"
)

// roles read what to do from standard input, a word a line, and tell what
// happened on standard output.
var roles = map[string]func(dir string, orders *bufio.Scanner) error{
	"lock":  playLock,
	"flock": playFlock,
	"hold":  playHold,
}

func play(role string) error {
	f := roles[role]
	if f == nil {
		return fmt.Errorf("no such role")
	}
	return f(os.Getenv(dirVariable), bufio.NewScanner(os.Stdin))
}

// A player is a process in a role.
type player struct {
	cmd    *exec.Cmd
	orders io.WriteCloser
	told   *bufio.Scanner
}

func (b *bench) player(role string) (*player, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(b.ctx, path)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, dirVariable+"="+b.dir)
	cmd.Stderr = os.Stderr
	orders, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	told, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &player{cmd, orders, bufio.NewScanner(told)}, cmd.Start()
}

func (p *player) order(word string) error {
	_, err := fmt.Fprintln(p.orders, word)
	return err
}

// expect reads until a line begins with a word, and returns the rest of it.
func (p *player) expect(word string) (string, error) {
	for p.told.Scan() {
		if first, rest, _ := strings.Cut(p.told.Text(), " "); first == word {
			return rest, nil
		}
	}
	if err := p.told.Err(); err != nil {
		return "", err
	}
	return "", fmt.Errorf("the other process ended instead of telling %q", word)
}

// end has the process come to its end.
func (p *player) end() error {
	p.orders.Close()
	return p.cmd.Wait()
}
