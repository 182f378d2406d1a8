package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// command runs `true` under a lock, from the start of the process to its end.
func command(b *bench) ([]Row, error) {
	if !b.has("sqlite") {
		return nil, nil
	}
	holdfast, err := b.holdfast()
	if err != nil {
		return nil, err
	}
	if holdfast == "" {
		return []Row{Row{Store: "sqlite", System: "holdfast run x -- true"}.notes("skipped: the command does not build here")}, nil
	}
	env := append(os.Environ(), "HOLDFAST_STORE=sqlite:"+b.path("command.db"), "XDG_RUNTIME_DIR="+b.dir)
	if out, err := environ(exec.CommandContext(b.ctx, holdfast, "schema", "apply"), env).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("schema apply: %w: %s", err, out)
	}
	lines := [][]string{
		{"true"},
		{"flock", b.path("flock-command"), "true"},
		{holdfast, "version"},
		{holdfast, "run", "x", "--", "true"},
	}
	var runs []run
	var rows []Row
	for _, line := range lines {
		path, err := exec.LookPath(line[0])
		if errors.Is(err, exec.ErrNotFound) {
			b.say("SKIPPED: there is no %s here", line[0])
			rows = append(rows, Row{Store: "sqlite", System: line[0]}.notes("skipped: not installed"))
			continue
		}
		name := strings.ReplaceAll(strings.Join(line, " "), b.dir+string(os.PathSeparator), "")
		runs = append(runs, run{name: name, round: func() (series, error) {
			return timed(3, func() error {
				return environ(exec.CommandContext(b.ctx, path, line[1:]...), env).Run()
			})
		}})
	}
	taken, err := b.take(b.rounds, true, runs)
	if err != nil {
		return nil, err
	}
	for i, s := range runs {
		row := taken[i].row(Row{Store: "sqlite", System: s.name}, "ms", 1e3)
		over := taken[i].over(taken[0]) * 1e3
		if i > 0 {
			row.Ratio, row.Of = taken[i].ratio(taken[0]), "true"
			row = row.notes("%.1f ms more than true", over)
		}
		if strings.HasPrefix(s.name, "holdfast run") {
			row = row.aims("≤ 15 ms more", over <= 15)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// holdfast builds the command, once, and tells where; "" if it does not build here.
func (b *bench) holdfast() (path string, err error) {
	path = b.path("holdfast")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	build := exec.CommandContext(b.ctx, "go", "build", "-o", path, "github.com/holdfast-lock/holdfast/cmd/holdfast")
	if out, err := build.CombinedOutput(); err != nil {
		b.say("SKIPPED: the command does not build: %v\n%s", err, out)
		return "", b.ctx.Err()
	}
	return path, nil
}

func environ(cmd *exec.Cmd, env []string) *exec.Cmd {
	cmd.Env = env
	return cmd
}
