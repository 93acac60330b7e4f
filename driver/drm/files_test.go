package drm

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Removing any single file removes only its own values, without an error.
func TestEveryFile(t *testing.T) {
	prepare := func() *machine {
		m := suite(t)
		m.sample()
		m.later(time.Second)
		m.sample()
		m.later(maxRescan)
		return m
	}
	whole := prepare()
	before := whole.sample()
	for _, path := range filesOf(t, whole.root) {
		m := prepare()
		must.Do(t, os.Remove(filepath.Join(m.root, path)))
		after := m.sample()
		var touched string
		switch {
		case strings.Contains(path, "proc/10/"), strings.Contains(path, "card1"):
			touched = amd
		case strings.Contains(path, "proc/20/"), strings.Contains(path, "accel"):
			touched = npu
		}
		for device, want := range before {
			got := after[device]
			if device != touched {
				expect.Equal(t, fmt.Sprintf("without %s, of another device", path), want, got)
				continue
			}
			for name := range got.Device {
				_, ok := want.Device[name]
				expect.That(t, ok, "without %s there is %s", path, name)
			}
			if path != "proc/10/fdinfo/none" && path != "proc/20/fdinfo/none" && cmp.Equal(want, got) && !unread(path) {
				t.Errorf("without %s all is as before", path)
			}
		}
	}
}

// unread reports whether all values of a file are remembered, or are also in other files.
func unread(path string) bool {
	return strings.Contains(path, "DP-1") || strings.HasSuffix(path, "proc/10/fdinfo/none") ||
		strings.HasPrefix(path, "devices/") // links of cards, which are followed twice a minute
}

// filesOf returns the files and links below a folder.
func filesOf(tb testing.TB, root string) []string {
	tb.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			path, err = filepath.Rel(root, path)
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		tb.Fatal(files, err)
	}
	return files
}
