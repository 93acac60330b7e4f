package inventory

import (
	"fmt"
	"os"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// racyWindow is the time after a write in which another write may leave the modification time
// unchanged: the clock of the file system has a resolution of a few milliseconds.
const racyWindow = 50 * time.Millisecond

// File is a file that may change, including by a rename or through the symbolic links of a
// ConfigMap. It is not safe for concurrent use.
type File struct {
	path string
	now  func() time.Time
	seen stamp
}

// NewFile returns the file at a path without reading it.
func NewFile(path string) *File { return &File{path: path, now: time.Now} }

// Path returns the path of the file.
func (f *File) Path() string { return f.path }

// Load returns the content of the file if it has changed since the last successful Load. If it has
// not, Load makes a single stat call. For a file above 64 MiB it returns [sysfs.ErrTooLarge].
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

// Modified returns the modification time of the last loaded content; zero: none was loaded.
func (f *File) Modified() time.Time { return f.seen.mtime }

// stamp identifies the content of a file without reading it.
type stamp struct {
	mtime time.Time
	size  int64
	info  os.FileInfo // for device and inode
	racy  bool        // the file was written just before the stamp was taken
}

func stampOf(info os.FileInfo, now time.Time) stamp {
	age := now.Sub(info.ModTime())
	return stamp{mtime: info.ModTime(), size: info.Size(), info: info, racy: age >= 0 && age < racyWindow}
}

// same reports whether s, taken later than old, certainly stands for the same content.
func (s stamp) same(old stamp) bool {
	return old.info != nil && !old.racy && s.mtime.Equal(old.mtime) && s.size == old.size && os.SameFile(s.info, old.info)
}
