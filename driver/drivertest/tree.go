package drivertest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// WriteTree writes a tree of files, such as a part of sysfs, below a folder. The text has a line
// for each file: "path: content" for a file with one line, "path -> target" for a symbolic link.
// Empty lines and lines that begin with # are ignored. Later lines replace earlier files. Trees are
// kept as text since a Go module can contain neither symbolic links nor file names with the colons
// of PCI addresses.
func WriteTree(tb testing.TB, folder, text string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		err := writeNode(folder, line)
		must.That(tb, err == nil, "write tree: %v", err)
	}
}

func writeNode(folder, line string) error {
	name, target, isLink := strings.Cut(line, " -> ")
	name, content, isFile := strings.Cut(name, ": ")
	if !isLink && !isFile {
		return &os.PathError{Op: "parse", Path: line, Err: os.ErrInvalid}
	}
	path := filepath.Join(folder, name)
	write := func() error {
		if isLink {
			return os.Symlink(target, path)
		}
		return writeNew(path, content+"\n")
	}
	err := write()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	case errors.Is(err, fs.ErrExist):
		err = os.Remove(path)
	default:
		return err
	}
	if err != nil {
		return err
	}
	return write()
}

// writeNew writes a file that does not exist yet, so that no link is followed.
func writeNew(path, content string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	return errors.Join(err, file.Close())
}
