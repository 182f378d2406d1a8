//go:build !linux && !darwin

package state

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// A folder is a directory by its path.
type folder struct{ path string }

func openFolder(path string) (folder, error) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = failed("open", path, errNotFolder)
	}
	return folder{path}, err
}

func openBelow(path, name string) (folder, error) { return folder{path}.open(name) }

func (f folder) open(name string) (folder, error) {
	info, err := os.Lstat(f.name(name))
	if err == nil && !info.IsDir() {
		err = failed("open", f.name(name), errNotFolder)
	}
	return folder{f.name(name)}, err
}

func (f folder) close() {}

func (f folder) refresh() {}

func (f folder) name(name string) string { return filepath.Join(f.path, name) }

func (f folder) mkdir(name string) error { return os.Mkdir(f.name(name), 0o777) }

func (f folder) list(n int) (names []string, more bool, err error) {
	d, err := os.Open(f.path)
	if err != nil {
		return nil, false, err
	}
	defer d.Close()
	names, err = d.Readdirnames(n + 1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names[:min(len(names), n)], len(names) > n, err
}

func (f folder) read(name string, most int) ([]byte, fileInfo, error) {
	info, err := f.stat(name)
	if err != nil {
		return nil, info, err
	}
	if !info.regular {
		return nil, info, failed("read", f.name(name), errNotRegular)
	}
	if info.size > int64(most) {
		return nil, info, failed("read", f.name(name), errTooLong)
	}
	text, err := os.ReadFile(f.name(name))
	if err == nil && int64(len(text)) != info.size {
		err = failed("read", f.name(name), errTorn)
	}
	return text, info, err
}

func (f folder) stat(name string) (fileInfo, error) {
	info, err := os.Lstat(f.name(name))
	if err != nil {
		return fileInfo{}, err
	}
	return fileInfo{regular: info.Mode().IsRegular(), size: info.Size(), links: 1,
		mtime: info.ModTime().UnixNano(), ctime: info.ModTime().UnixNano()}, nil
}

func (f folder) create(name string) (*os.File, error) {
	return os.OpenFile(f.name(name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
}

// touch writes a file anew: setting its times would use the clock of this host.
func (f folder) touch(name string) error {
	file, err := os.OpenFile(f.name(name), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	first := make([]byte, 1)
	switch _, err := file.ReadAt(first, 0); {
	case errors.Is(err, io.EOF): // empty: a probe
		if _, err := file.Write([]byte{'\n'}); err != nil {
			return err
		}
		return file.Sync()
	case err != nil:
		return err
	}
	if _, err := file.WriteAt(first, 0); err != nil {
		return err
	}
	return file.Sync()
}

func (f folder) rename(name string, to folder, as string) error {
	return os.Rename(f.name(name), to.name(as))
}

func (f folder) link(name, as string) error { return os.Link(f.name(name), f.name(as)) }

func (f folder) remove(name string) error { return os.Remove(f.name(name)) }

func (f folder) sync() error { return nil } // directories cannot be synced here

func identity(*os.File) (string, error) { return "", errors.ErrUnsupported }

func lock(*os.File) error { return errors.ErrUnsupported }

func (f folder) locked(string, string) (bool, error) { return false, errors.ErrUnsupported }

func stale(error) bool { return false }
