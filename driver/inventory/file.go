package inventory

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
)

var errNotRegular = errors.New("not a regular file")

// racyWindow is how long after a write another one might leave the file's time as it is: the clock that stamps files
// ticks every few milliseconds.
const racyWindow = 50 * time.Millisecond

// File is a file that may change, through a rename or a ConfigMap's symbolic links too. It is for one goroutine.
type File struct {
	path string
	now  func() time.Time
	seen stamp
}

// NewFile returns the file at that path; nothing is read yet.
func NewFile(path string) *File { return &File{path: path, now: time.Now} }

// Load returns the file's content if it has changed since the last Load that succeeded: it is cheap enough for every
// tick, being one stat where nothing changed. Files above 64 MiB are refused with [manifest.ErrTooLarge].
func (f *File) Load() (data []byte, changed bool, err error) {
	info, err := os.Stat(f.path)
	if err != nil {
		f.seen = stamp{}
		return nil, false, fmt.Errorf("load file: %w", err)
	}
	current := stampOf(info, f.now())
	if current.same(f.seen) {
		return nil, false, nil
	}
	if data, err = readFile(f.path, info, manifest.MaxBytes); err != nil {
		return nil, false, fmt.Errorf("load file: %w", err)
	}
	f.seen = current
	return data, true, nil
}

// stamp tells versions of a file apart without reading it.
type stamp struct {
	mtime time.Time
	size  int64
	info  os.FileInfo // its device and inode
	racy  bool        // the file was written just before it was looked at
}

func stampOf(info os.FileInfo, now time.Time) stamp {
	age := now.Sub(info.ModTime())
	return stamp{mtime: info.ModTime(), size: info.Size(), info: info, racy: age >= 0 && age < racyWindow}
}

// same tells whether s, taken later than old, surely is of the same content.
func (s stamp) same(old stamp) bool {
	return old.info != nil && !old.racy && s.mtime.Equal(old.mtime) && s.size == old.size && os.SameFile(s.info, old.info)
}

// readFile reads a regular file of at most limit bytes. info comes first, so that opening can't wait on a pipe.
func readFile(path string, info os.FileInfo, limit int64) ([]byte, error) {
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: %w", path, errNotRegular)
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("read %s: %w: at most %d bytes are read", path, manifest.ErrTooLarge, limit)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	defer func() { _ = file.Close() }()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("read %s: %w: at most %d bytes are read", path, manifest.ErrTooLarge, limit)
	}
	return data, nil
}
