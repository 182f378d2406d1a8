//go:build linux

package git

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/holdfast-lock/holdfast/state"
)

// roles are what other processes do. Each is told what by a job.
var roles = map[string]func() error{"writer": writer, "reader": reader}

// A job is what a process is told in its environment.
type job struct {
	Name     string
	Dir      string // where it leaves its log, and contents
	Repo     string
	Pause    time.Duration // between two pushes or questions, on average
	Receive  string        // of a writer: the program for git push --receive-pack
	Pool     string        // the repository that has its values
	Values   []string
	Refs     []int
	Way      string // of a reader: library, command, script or git
	Contents string
}

func readJob() (j job, log *os.File, err error) {
	text, err := os.ReadFile(os.Getenv("GIT_JOB"))
	if err == nil {
		err = json.Unmarshal(text, &j)
	}
	if err == nil { // what was written is there also if we are killed
		log, err = os.OpenFile(filepath.Join(j.Dir, j.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	}
	return j, log, err
}

// An event is a line of a log.
type event struct {
	// Of a push: it begins, with what it pushes, and ends.
	Push   int           `json:",omitempty"`
	Refs   []int         `json:",omitempty"`
	Values []string      `json:",omitempty"`
	Done   bool          `json:",omitempty"` // it ended with success
	Begin  time.Duration `json:",omitempty"`
	End    time.Duration `json:",omitempty"`
	// Of an answer, which took from Begin to End.
	Way     string `json:",omitempty"`
	Hit     bool   `json:",omitempty"`
	Content string `json:",omitempty"`
	Error   string `json:",omitempty"`
}

func tell(log *os.File, e event) error {
	text, err := json.Marshal(e)
	if err == nil {
		_, err = log.Write(append(text, '\n'))
	}
	return err
}

// pause waits for a while, about as long as it is told.
func (j *job) pause() { time.Sleep(time.Duration((0.2 + 1.6*rand.Float64()) * float64(j.Pause))) }

// over says whether the soak has ended.
func (j *job) over() bool {
	_, err := os.Stat(filepath.Join(j.Dir, "over"))
	return err == nil
}

// writer pushes new values to its own refs.
func writer() error {
	j, log, err := readJob()
	if err != nil {
		return err
	}
	next := 0
	for n := 1; !j.over(); n++ {
		e := event{Push: n}
		args := []string{"-C", j.Pool, "push", "-q", "-f"}
		if j.Receive != "" {
			args = append(args, "--receive-pack="+j.Receive)
		}
		args = append(args, j.Repo)
		for _, k := range rand.Perm(len(j.Refs))[:1+rand.IntN(4)] {
			if next == len(j.Values) {
				return fmt.Errorf("%d values are too few", next)
			}
			e.Refs, e.Values = append(e.Refs, j.Refs[k]), append(e.Values, j.Values[next])
			args = append(args, j.Values[next]+":"+refName(j.Refs[k]))
			next++
		}
		e.Begin = now()
		if err := tell(log, e); err != nil {
			return err
		}
		c := exec.Command("git", args...)
		out, err := c.CombinedOutput()
		end := event{Push: n, End: now(), Done: err == nil}
		if err != nil {
			end.Error = fmt.Sprintf("%v: %s", err, bytes.TrimSpace(out))
		}
		if err := tell(log, end); err != nil {
			return err
		}
		j.pause()
	}
	return nil
}

const kind = "info/refs v1"

// reader asks for the advertisement, again and again.
func reader() error {
	j, log, err := readJob()
	if err != nil {
		return err
	}
	s, err := state.Dir(j.Repo, nil)
	if err != nil {
		return err
	}
	cache, err := state.OpenCache(filepath.Join(j.Dir, "cache"), nil)
	if err != nil {
		return err
	}
	trace := filepath.Join(j.Dir, fmt.Sprintf("%s.%d.trace", j.Name, os.Getpid()))
	var buf bytes.Buffer
	for !j.over() {
		way := j.Way
		if rand.IntN(40) == 0 {
			way = "git" // it is judged, too
		}
		buf.Reset()
		e := event{Way: way, Begin: now()}
		e.Hit, err = ask(way, j.Repo, filepath.Join(j.Dir, "cache"), s, cache, trace, &buf)
		e.End = now()
		if err != nil {
			e.Error = err.Error()
		} else {
			sum := sha256.Sum256(buf.Bytes())
			e.Content = hex.EncodeToString(sum[:])
			err = keep(filepath.Join(j.Contents, e.Content), buf.Bytes())
		}
		if err := tell(log, e); err != nil || e.Error == "" && e.Content == "" {
			return err
		}
		j.pause()
	}
	return err
}

// ask gets an advertisement in one of the ways, and says whether git was not
// run for it.
func ask(way, repo, dir string, s *state.State, cache *state.Cache, trace string, to *bytes.Buffer) (hit bool, err error) {
	command := func(w io.Writer, name string, args ...string) error {
		c := exec.Command(name, args...)
		var says bytes.Buffer
		c.Stdout, c.Stderr = w, &says
		c.Env = append(os.Environ(), "GIT_TRACE="+trace)
		if err := c.Run(); err != nil {
			return fmt.Errorf("%s: %w: %s", name, err, says.Bytes())
		}
		return nil
	}
	size := func() int64 {
		info, err := os.Stat(trace)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	switch before := size(); way {
	case "git":
		return false, command(to, "git", "upload-pack", "--advertise-refs", repo)
	case "library":
		hit = true
		b, err := cache.Get(context.Background(), s, kind, func(ctx context.Context, w io.Writer) error {
			hit = false
			return command(w, "git", "upload-pack", "--advertise-refs", repo)
		})
		if err != nil {
			return false, err
		}
		defer b.Close()
		_, err = io.Copy(to, b)
		return hit, err
	case "script":
		err = command(to, "../../docs/git/info-refs", repo)
		return size() == before, err
	default:
		err = command(to, "holdfast", "cache", "--dir", dir, "--kind", kind, "--state", repo, "--", "git", "upload-pack", "--advertise-refs", repo)
		return size() == before, err
	}
}

// keep writes a content down, once.
func keep(path string, text []byte) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	temp := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.WriteFile(temp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
