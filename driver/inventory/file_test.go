package inventory

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "slices.yaml")
	f := NewFile(path)
	now := time.Now()
	f.now = func() time.Time { return now.Add(time.Hour) } // long after every write

	check := func(wantData string, wantChanged bool) {
		data, changed, err := f.Load()
		expect.That(t, err == nil && string(data) == wantData && changed == wantChanged,
			"Load() = %q, %v, %v; want %q, %v", data, changed, err, wantData, wantChanged)
	}
	if _, _, err := f.Load(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
	write(t, path, "one")
	check("one", true)
	check("", false)
	write(t, path, "three")
	check("three", true)

	replacement := filepath.Join(dir, "new") // another inode, same size and time: a ConfigMap's swap
	write(t, replacement, "seven")
	must.Do(t, os.Chtimes(replacement, now, now))
	must.Do(t, os.Chtimes(path, now, now))
	check("three", true)
	must.Do(t, os.Rename(replacement, path))
	check("seven", true)

	must.Do(t, os.Remove(path))
	if _, _, err := f.Load(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
	write(t, path, "back")
	check("back", true)
}

// TestFileRacy holds that a second write within the file clock's tick is not missed.
func TestFileRacy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	at := time.Now()
	f := NewFile(path)
	f.now = func() time.Time { return at.Add(time.Millisecond) }
	for _, content := range []string{"a", "b"} {
		write(t, path, content)
		must.Do(t, os.Chtimes(path, at, at))
		if data, changed, err := f.Load(); string(data) != content || !changed || err != nil {
			t.Errorf("Load() = %q, %v, %v; want %q", data, changed, err, content)
		}
	}
}

func TestFileRefused(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	write(t, large, "")
	must.Do(t, os.Truncate(large, manifest.MaxBytes+1))
	pipe := filepath.Join(dir, "pipe")
	must.Do(t, syscall.Mkfifo(pipe, 0o600))
	for path, want := range map[string]error{
		large: sysfs.ErrTooLarge, pipe: sysfs.ErrNotRegular, dir: sysfs.ErrNotRegular,
	} {
		_, changed, err := NewFile(path).Load()
		expect.That(t, errors.Is(err, want) && !changed, "%s: changed %v, error %v, want %v", path, changed, err, want)
	}
}

func write(t *testing.T, path, content string) {
	must.Do(t, os.WriteFile(path, []byte(content), 0o600))
}
