package inventory

import (
	"fmt"
	"os"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// racyWindow is how long after a write another one might leave the file's time as it is: the clock
// that stamps files ticks every few milliseconds.
const racyWindow = 50 * time.Millisecond

// File is a file that may change, through a rename or a ConfigMap's symbolic links too. It is for
// one goroutine.
type File struct {
	path string
	now  func() time.Time
	seen stamp
}

// NewFile returns the file at that path; nothing is read yet.
func NewFile(path string) *File { return &File{path: path, now: time.Now} }

// Path returns where the file is.
func (f *File) Path() string { return f.path }

// Load returns the file's content if it has changed since the last Load that succeeded: it is cheap
// enough for every tick, being one stat where nothing changed. Files above 64 MiB are refused with
// [sysfs.ErrTooLarge].
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
	if data, err = sysfs.ReadFile(f.path, manifest.MaxBytes); err != nil {
		return nil, false, fmt.Errorf("load file: %w", err)
	}
	f.seen = current
	return data, true, nil
}

// Modified returns when the file that was loaded last was modified; zero: none was.
func (f *File) Modified() time.Time { return f.seen.mtime }

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

// same reports whether s, taken later than old, surely is of the same content.
func (s stamp) same(old stamp) bool {
	return old.info != nil && !old.racy && s.mtime.Equal(old.mtime) && s.size == old.size && os.SameFile(s.info, old.info)
}
