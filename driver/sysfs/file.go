// Package sysfs reads small files and follows links of the kernel's file systems: attributes, NUMA
// nodes, PCI addresses and hwmon sensors. Sources share it. Its functions for files also read the
// administrator's own files, since none of them waits for a file that turns out to be a pipe, nor
// reads more than a bound.
package sysfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// What may be wrong with a file.
var (
	ErrNotRegular = errors.New("not a regular file")
	ErrTooLarge   = errors.New("file too large")
	ErrEmpty      = errors.New("file is empty")
)

// Dir is an open folder, or a file. What is opened below it belongs to the very device that it was
// opened for: when that is gone there is nothing below it, even if another one has taken the name.
type Dir int

// WorkingDir is where absolute paths are opened.
const WorkingDir Dir = unix.AT_FDCWD

// OpenDir opens a folder below another one.
func OpenDir(parent Dir, name string) (Dir, error) {
	fd, err := openAt(parent, name, unix.O_DIRECTORY)
	return Dir(fd), err
}

// Close closes the folder.
func (d Dir) Close() { _ = unix.Close(int(d)) }

// openAt opens for reading and never waits, not even for what turns out to be a pipe.
func openAt(at Dir, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(int(at), path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|flags, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// Names returns the sorted names of what is in a folder, at most limit of them.
func Names(at Dir, path string, limit int) ([]string, error) {
	dir, err := openAt(at, path, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(dir), path)
	defer func() { _ = file.Close() }()
	found, err := file.Readdirnames(limit)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	slices.Sort(found)
	return found, nil
}

// isRegular reports whether an open file is a regular one, as all files of sysfs and procfs are.
func isRegular(fd int) bool {
	var stat unix.Stat_t
	return unix.Fstat(fd, &stat) == nil && stat.Mode&unix.S_IFMT == unix.S_IFREG
}

// Open opens a regular file for reading. It fails with ErrNotRegular for anything else, without
// waiting.
func Open(path string) (*os.File, error) {
	file, _, err := open(path)
	return file, err
}

func open(path string) (*os.File, fs.FileInfo, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

// ReadFile returns the content of a regular file of at most limit bytes. It fails with ErrTooLarge
// for a larger one, and with ErrNotRegular for anything else, without waiting.
func ReadFile(path string, limit int64) ([]byte, error) {
	file, info, err := open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var data []byte
	if info.Size() <= limit {
		data, err = io.ReadAll(io.LimitReader(file, limit+1))
	}
	if err == nil && max(info.Size(), int64(len(data))) > limit {
		err = &fs.PathError{
			Op: "read", Path: path, Err: fmt.Errorf("%w: at most %d bytes are read", ErrTooLarge, limit),
		}
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// maxValue bounds the content of an attribute that a Reader reads: one value.
const maxValue = 64

// Reader reads attributes into one buffer. An attribute holds one value, which a single call reads;
// os.ReadFile makes seven of it. A Reader is for one goroutine.
type Reader struct{ buffer [maxValue + 1]byte }

// Value returns an attribute's value without white space around it, valid until the next call.
func (r *Reader) Value(at Dir, path string) ([]byte, error) {
	fd, err := openAt(at, path, 0)
	if err != nil {
		return nil, err
	}
	defer Dir(fd).Close()
	if !isRegular(fd) {
		return nil, ErrNotRegular
	}
	n, err := unix.Read(fd, r.buffer[:])
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, r.buffer[:])
	}
	if err != nil {
		return nil, err
	}
	return parseValue(r.buffer[:n])
}

// Number returns an attribute's unsigned decimal number.
func (r *Reader) Number(at Dir, path string) (uint64, error) {
	value, err := r.Value(at, path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(value), 10, 64)
}

// ReadInto reads a regular file into a buffer and returns the part that it fills. It fails with
// ErrTooLarge for a file that does not fit.
func ReadInto(at Dir, path string, buffer []byte) ([]byte, error) {
	fd, err := openAt(at, path, 0)
	if err != nil {
		return nil, err
	}
	defer Dir(fd).Close()
	if !isRegular(fd) {
		return nil, ErrNotRegular
	}
	for filled := 0; filled < len(buffer); {
		n, err := unix.Read(fd, buffer[filled:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case n == 0:
			return buffer[:filled], nil
		default:
			filled += n
		}
	}
	return nil, ErrTooLarge
}

// parseValue returns the one value of a file.
func parseValue(content []byte) ([]byte, error) {
	if len(content) > maxValue {
		return nil, ErrTooLarge
	}
	value := bytes.TrimSpace(content)
	if len(value) == 0 {
		return nil, ErrEmpty
	}
	return value, nil
}

// IsGone reports whether an error says that a device is not, or no longer, there.
func IsGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENODEV)
}

// IsAbsent reports whether the error of an attribute says that there is no such value: the device
// does not support it, is down, or is gone.
func IsAbsent(err error) bool {
	return IsGone(err) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}
