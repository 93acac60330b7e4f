// Package sysfs reads attributes, NUMA nodes, PCI addresses and hwmon sensors in the kernel's file
// systems. Its functions for files also suit untrusted files: they do not block on pipes, and read
// at most a maximum size.
//
// Bounds (max…) are for what the kernel sends.
package sysfs

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

	"golang.org/x/sys/unix"
)

// Errors of files.
var (
	ErrNotRegular = errors.New("not a regular file")
	ErrTooLarge   = errors.New("file too large")
	ErrEmpty      = errors.New("file is empty")
)

// Dir is the descriptor of an open folder or file. Files below a device's open folder always belong
// to that device: after it is removed, there are none, even if another device has the same name.
type Dir int

// WorkingDir is the Dir for absolute paths.
const WorkingDir Dir = unix.AT_FDCWD

// OpenDir opens a folder in another one.
func OpenDir(parent Dir, name string) (Dir, error) {
	fd, err := openAt(parent, name, unix.O_DIRECTORY)
	return Dir(fd), err
}

// Close closes the folder.
func (d Dir) Close() { _ = unix.Close(int(d)) }

// openAt opens a file for reading. It never blocks, even if the file is a pipe.
func openAt(at Dir, path string, flags int) (int, error) {
	return uninterrupted(func() (int, error) {
		return unix.Openat(int(at), path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|flags, 0)
	})
}

// uninterrupted makes a system call again if a signal has interrupted it.
func uninterrupted(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// maxNames is the maximum number of entries of a folder.
const maxNames = 1 << 14

// Names returns the sorted names of the entries of a folder. Of a folder with very many, it returns
// only some.
func Names(at Dir, path string) ([]string, error) { return FirstNames(at, path, maxNames) }

// FirstNames is Names for at most limit entries: those that the kernel lists first.
func FirstNames(at Dir, path string, limit int) ([]string, error) {
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

// Open opens a regular file for reading. For other files it returns ErrNotRegular without blocking.
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

// ReadFile returns the content of a regular file of at most limit bytes. For a larger file it
// returns ErrTooLarge, and for other files ErrNotRegular, without blocking.
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

// maxValue is the maximum size of an attribute that a Reader reads.
const maxValue = 64

// Reader reads attributes, each of which has one value, into one buffer. It makes fewer system
// calls than os.ReadFile. A Reader is not safe for concurrent use.
type Reader struct{ buffer [maxValue + 1]byte }

// Value returns the value of an attribute without surrounding white space. It is valid until the
// next call.
func (r *Reader) Value(at Dir, path string) ([]byte, error) {
	fd, err := openAt(at, path, 0)
	if err != nil {
		return nil, err
	}
	defer Dir(fd).Close()
	if !isRegular(fd) {
		return nil, ErrNotRegular
	}
	n, err := uninterrupted(func() (int, error) { return unix.Read(fd, r.buffer[:]) })
	if err != nil {
		return nil, err
	}
	return parseValue(r.buffer[:n])
}

// Number returns the value of an attribute that is an unsigned decimal number.
func (r *Reader) Number(at Dir, path string) (uint64, error) {
	value, err := r.Value(at, path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(value), 10, 64)
}

// ReadInto reads a regular file into a buffer and returns the filled part. It returns ErrTooLarge
// if the file does not fit.
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
		n, err := uninterrupted(func() (int, error) { return unix.Read(fd, buffer[filled:]) })
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return buffer[:filled], nil
		}
		filled += n
	}
	return nil, ErrTooLarge
}

// parseValue returns the value in a file that has one.
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

// IsGone reports whether an error means that a device does not, or no longer, exist.
func IsGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENODEV)
}

// HasEnded reports whether an error of a file of a process means that the process has ended, or
// that there is no such file any more.
func HasEnded(err error) bool { return IsGone(err) || errors.Is(err, unix.ESRCH) }

// IsAbsent reports whether the error of an attribute means that there is no value: the device does
// not support it, is down, or no longer exists.
func IsAbsent(err error) bool {
	return IsGone(err) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// ErrNotSysfs is the error of a pod that has something else mounted at /sys.
var ErrNotSysfs = errors.New("the pod has something else mounted at /sys")

// OpenClass opens the folder of a class in the sysfs of a process, which takes CAP_SYS_PTRACE. The
// files of the process are controlled by its pod: only files within its root are opened, and only
// if isSysfs, which is [IsSysfs], accepts the folder.
func OpenClass(procfs string, pid int, class string, isSysfs func(Dir) bool) (Dir, error) {
	root, err := OpenDir(WorkingDir, filepath.Join(procfs, strconv.Itoa(pid), "root"))
	if err != nil {
		return 0, err
	}
	defer root.Close()
	return acceptSysfs(isSysfs)(OpenIn(root, "sys/class/"+class))
}

// OpenDevice opens the folder of a device in the folder of a class, as OpenClass does.
func OpenDevice(class Dir, name string, isSysfs func(Dir) bool) (Dir, error) {
	return acceptSysfs(isSysfs)(OpenDir(class, name))
}

// acceptSysfs returns a function that closes an open folder that isSysfs does not accept.
func acceptSysfs(isSysfs func(Dir) bool) func(Dir, error) (Dir, error) {
	return func(dir Dir, err error) (Dir, error) {
		if err == nil && !isSysfs(dir) {
			dir.Close()
			return 0, ErrNotSysfs
		}
		return dir, err
	}
}

// OpenIn opens a folder below a root, such as that of a process. Symbolic links do not lead out of
// the root.
func OpenIn(root Dir, path string) (Dir, error) {
	fd, err := uninterrupted(func() (int, error) {
		return unix.Openat2(int(root), path, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_DIRECTORY | unix.O_NONBLOCK,
			Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
		})
	})
	return Dir(fd), err
}

// IsSysfs reports whether an open folder is in a sysfs, and not in another file system that a pod
// has mounted.
func IsSysfs(dir Dir) bool {
	var stat unix.Statfs_t
	return unix.Fstatfs(int(dir), &stat) == nil && stat.Type == unix.SYSFS_MAGIC
}
