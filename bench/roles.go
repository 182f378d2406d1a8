package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// taskVariable is in the environment of this program when it is started again
// to be another process of a workload: its task.
const taskVariable = "HOLDFAST_BENCH_TASK"

// A task is what such a process does. It reads from standard input what to do
// next, a line each, ends with it, and tells what happened on standard output.
type task struct {
	Role          string
	Store, System string
	Options       options
	Site          site
}

var roles = map[string]func(t *task, orders *bufio.Scanner) error{
	"turns": playTurns,
	"crash": playCrash,
	"hold":  playHold,
	"wait":  playWait,
	"idle":  playIdle,
	"spin":  playSpin,
	"ops":   playPairs,
	"many":  playMany,
}

func play(text string) error {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return err
	}
	f := roles[t.Role]
	if f == nil {
		return fmt.Errorf("no role %q", t.Role)
	}
	if err := f(&t, bufio.NewScanner(os.Stdin)); err != nil {
		return fmt.Errorf("%s of %s on %s: %w", t.Role, t.System, t.Store, err)
	}
	return nil
}

// open opens the task's system.
func (t *task) open(ctx context.Context) (locker, error) {
	s := findSystem(t.Store, t.System)
	if s == nil {
		return nil, fmt.Errorf("there is no such system")
	}
	return s.open(ctx, &t.Site, t.Options)
}

var telling sync.Mutex

// tell writes a line at once.
func tell(format string, args ...any) {
	telling.Lock()
	defer telling.Unlock()
	fmt.Fprintf(os.Stdout, format+"\n", args...)
}

// A player is a process with a task.
type player struct {
	cmd    *exec.Cmd
	orders io.WriteCloser
	told   *bufio.Scanner
	ended  sync.Once
	err    error
}

func (b *bench) player(role string, s *system, o options) (*player, error) {
	return b.playerBehind(nil, role, s, o)
}

// playerBehind starts a player by way of a command that watches it.
func (b *bench) playerBehind(command []string, role string, s *system, o options) (*player, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(task{role, s.store, s.name, o, b.site})
	if err != nil {
		return nil, err
	}
	command = append(command, path)
	cmd := exec.CommandContext(b.ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), taskVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	orders, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	told, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p := &player{cmd: cmd, orders: orders, told: bufio.NewScanner(told)}
	p.told.Buffer(nil, 64<<20)
	return p, cmd.Start()
}

// players starts n processes of one kind, and waits until all are ready.
func (b *bench) players(n int, role string, s *system, o options) (ps []*player, err error) {
	for range n {
		p, err := b.player(role, s, o)
		if err != nil {
			dismiss(ps)
			return nil, err
		}
		ps = append(ps, p)
	}
	for _, p := range ps {
		if _, err := p.expect("ready"); err != nil {
			dismiss(ps)
			return nil, err
		}
	}
	return ps, nil
}

// dismiss has all come to their end.
func dismiss(ps []*player) {
	for _, p := range ps {
		p.orders.Close()
	}
	for _, p := range ps {
		p.end()
	}
}

func (p *player) order(format string, args ...any) error {
	_, err := fmt.Fprintf(p.orders, format+"\n", args...)
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

// stamp is the time at which something happened that a player tells of.
func (p *player) stamp(word string) (int64, error) {
	rest, err := p.expect(word)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(rest, 10, 64)
}

// number is what a player tells.
func (p *player) number(word string) (float64, error) {
	rest, err := p.expect(word)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(rest, 64)
}

// tells reads what a player tells as JSON.
func (p *player) tells(word string, v any) error {
	rest, err := p.expect(word)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(rest), v)
}

// end has the process come to its end, by force if it does not.
func (p *player) end() error {
	p.ended.Do(func() {
		p.orders.Close()
		hurry := time.AfterFunc(20*time.Second, func() { p.cmd.Process.Kill() })
		defer hurry.Stop()
		for p.told.Scan() {
		}
		p.err = p.cmd.Wait()
	})
	return p.err
}

// kill ends the process with SIGKILL, and returns just before when.
func (p *player) kill() (int64, error) {
	at := monotonic()
	return at, p.cmd.Process.Kill()
}
