package netdev

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// folder is an open folder of sysfs, or a file. What is opened below it belongs to the very interface that it was opened for:
// when that is gone there is nothing below it, even if another has taken the name.
type folder int

// workingFolder is where paths from the root are opened.
const workingFolder folder = unix.AT_FDCWD

func openFolder(parent *os.File, name string) (folder, error) {
	fd, err := openAt(folder(parent.Fd()), name, unix.O_DIRECTORY)
	return folder(fd), err
}

func (f folder) close() { _ = unix.Close(int(f)) }

// openAt opens for reading and never waits, not even for what turns out to be a pipe.
func openAt(at folder, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(int(at), path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|flags, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

var (
	errTooLong = errors.New("file is too long")
	errEmpty   = errors.New("file is empty")
)

// maxFile bounds the content of a file. A file of sysfs holds one value and is read by a single call, which
// os.ReadFile and its registration of files for polling would make seven of.
const maxFile = 64

// reader reads small files into one buffer.
type reader struct{ buffer [maxFile + 1]byte }

// line returns the file's content without white space around it, valid until the next call.
func (r *reader) line(at folder, path string) ([]byte, error) {
	fd, err := openAt(at, path, 0)
	if err != nil {
		return nil, err
	}
	defer folder(fd).close()
	n, err := unix.Read(fd, r.buffer[:])
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Read(fd, r.buffer[:])
	}
	if err != nil {
		return nil, err
	}
	return parseLine(r.buffer[:n])
}

// number returns the file's unsigned decimal number.
func (r *reader) number(at folder, path string) (uint64, error) {
	line, err := r.line(at, path)
	if err != nil {
		return 0, err
	}
	return parseNumber(line)
}

// parseLine returns a file's one value.
func parseLine(content []byte) ([]byte, error) {
	if len(content) > maxFile {
		return nil, errTooLong
	}
	line := bytes.TrimSpace(content)
	if len(line) == 0 {
		return nil, errEmpty
	}
	return line, nil
}

func parseNumber(line []byte) (uint64, error) { return strconv.ParseUint(string(line), 10, 64) }

// parseSpeed returns the speed in bytes per second of what the kernel tells in Mbit/s; 0 where it says -1, unknown
// (Documentation/ABI/testing/sysfs-class-net).
func parseSpeed(line []byte) (float64, error) {
	const bytesPerMegabit = 1e6 / 8
	megabits, err := strconv.ParseInt(string(line), 10, 64)
	// Above what ethtool's 31 bits hold it is an unknown that a driver took for unsigned.
	if err != nil || megabits < 0 || megabits >= 1<<31-1 {
		return 0, err
	}
	return float64(megabits) * bytesPerMegabit, nil
}

// isGone tells whether an error says that an interface is not, or no longer, there.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENODEV)
}

// isAbsent tells whether an error of an interface's file says that there is no such value: the interface does not
// support it, is down, or is gone.
func isAbsent(err error) bool {
	return isGone(err) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

func nilAtEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// problems are the errors of a sample: the first, and how many others. A thousand interfaces fail alike.
type problems struct {
	first error
	more  int
}

func (p *problems) add(err error) {
	switch {
	case err == nil:
	case p.first == nil:
		p.first = err
	default:
		p.more++
	}
}

func (p *problems) addUnlessAbsent(err error, name, path string) {
	if !isAbsent(err) {
		p.add(fmt.Errorf("read %s of network interface %s: %w", path, name, err))
	}
}

func (p *problems) err() error {
	if p.more == 0 {
		return p.first
	}
	return fmt.Errorf("%w (and %d more errors)", p.first, p.more)
}
