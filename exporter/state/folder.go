package state

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
)

const (
	prefix, suffix = "state-", ".log"
	// aside ends the name of a segment that was set aside, followed by the reason.
	aside = ".aside-"
	// maxSegment is the largest size of a segment that is read or written.
	maxSegment = maxFrame + 2*rotateBytes
)

// file is a segment being written. It is an interface so that tests can make the disk fail.
type file interface {
	io.WriteCloser
	Sync() error
	Truncate(size int64) error
}

// folder is the store's folder. It is locked while it is open.
type folder struct {
	path string
	open *os.File
}

// errLocked is the error for a folder that another process writes.
var errLocked = driver.WithReason(driver.ReasonLocked, errors.New("another instance on this node writes it"))

// openFolder creates the folder if necessary, tries to write in it, and locks it.
func openFolder(path string) (folder, error) {
	if err := Probe(path); err != nil {
		return folder{}, err
	}
	dir, err := os.Open(path)
	if err != nil {
		return folder{}, fmt.Errorf("open folder: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = dir.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errLocked
		}
		return folder{}, fmt.Errorf("lock folder: %w", err)
	}
	if own(dir) {
		_ = dir.Chmod(0o700) // the kubelet creates hostPath folders that all may read
	}
	return folder{path, dir}, nil
}

// own reports whether the folder has only the exporter's files.
func own(dir *os.File) bool {
	names, err := dir.Readdirnames(-1)
	return err == nil && !slices.ContainsFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, prefix) && !strings.HasSuffix(name, ".json.gz") && !strings.HasPrefix(name, ".tmp-")
	})
}

// Probe returns an error if a folder can't be created or written. It removes what it writes.
func Probe(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	file, err := os.CreateTemp(path, ".tmp-")
	if err != nil {
		return fmt.Errorf("write to folder: %w", err)
	}
	_, err = file.Write(make([]byte, 1)) // an empty file needs no space
	_ = file.Close()
	if removing := os.Remove(file.Name()); err == nil {
		err = removing
	}
	if err != nil {
		return fmt.Errorf("write to folder: %w", err)
	}
	return nil
}

func (f *folder) close() {
	_ = f.open.Close()
	f.open = nil
}

// create creates a segment. Other users must not read it: it names pods and claims.
func (f *folder) create(number uint64) (file, error) {
	return os.OpenFile(f.name(number), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
}

// remove removes a segment, if there is one.
func (f *folder) remove(number uint64) error {
	if err := os.Remove(f.name(number)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeBefore removes the segments with smaller numbers.
func (f *folder) removeBefore(before uint64) error {
	numbers, err := f.numbers()
	for _, number := range numbers {
		if number < before {
			err = errors.Join(err, f.remove(number))
		}
	}
	return err
}

// disown prevents that the segments are continued, since newer values were served but not written.
// It cuts off their marks, which takes no space, or removes the segments.
func (f *folder) disown() {
	numbers, _ := f.numbers() // if they can't be listed, they can't be restored either
	for _, number := range numbers {
		if err := cutMark(f.name(number)); err != nil {
			_ = f.remove(number)
		}
	}
}

// cutMark cuts off the last frame of a file if it is a mark or the end frame.
func cutMark(name string) error {
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	last := make([]byte, len(mark()))
	at := info.Size() - int64(len(last))
	if at < 0 {
		return nil
	}
	if _, err := file.ReadAt(last, at); err != nil {
		return err
	}
	if !bytes.Equal(last, mark()) && !bytes.Equal(last, end()) {
		return nil
	}
	return file.Truncate(at)
}

// sync makes file names persistent over a crash of the machine.
func (f *folder) sync() error { return f.open.Sync() }

func (f *folder) name(number uint64) string {
	return filepath.Join(f.path, fmt.Sprintf("%s%08d%s", prefix, number, suffix))
}

// numbers returns the numbers of the segments, the newest first. A file whose name is not that of
// its number, such as one with further zeros, is none.
func (f *folder) numbers() ([]uint64, error) {
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return nil, fmt.Errorf("list folder: %w", err)
	}
	var out []uint64
	for _, e := range entries {
		name, begins := strings.CutPrefix(e.Name(), prefix)
		digits, ends := strings.CutSuffix(name, suffix)
		number, err := strconv.ParseUint(digits, 10, 64)
		canonical := len(digits) == 8 || len(digits) > 8 && digits[0] != '0'
		if begins && ends && err == nil && e.Type().IsRegular() && canonical {
			out = append(out, number)
		}
	}
	slices.Sort(out)
	slices.Reverse(out)
	return out, nil
}

// read returns the content of a segment.
func (f *folder) read(number uint64) ([]byte, error) {
	info, err := os.Lstat(f.name(number))
	if err != nil {
		return nil, err
	}
	if info.Size() > maxSegment {
		return nil, driver.WithReason(driver.ReasonTooLarge, fmt.Errorf("it has %d bytes", info.Size()))
	}
	return os.ReadFile(f.name(number))
}

// setAside renames a segment, and returns its new name. It removes segments set aside earlier.
func (f *folder) setAside(number uint64, reason driver.Reason) (name string, err error) {
	before, _ := filepath.Glob(filepath.Join(f.path, prefix+"*"+aside+"*")) // fails only for a bad pattern
	for _, name := range before {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	name = f.name(number) + aside + string(reason)
	return name, os.Rename(f.name(number), name)
}
