// Writable tries to write everywhere in the file systems that it sees, and prints what succeeded:
// one line "HOW PATH" each, then one line "tried NUMBER FOLDER" for each folder. It changes nothing
// that stays.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Patterns of paths in procfs.
const (
	// threads are folders with the same files as the process's own folder, on the same mount.
	threads = `/proc/\d+/task$`
	// magic are links to other mounts, where the mount of procfs is no protection.
	magic = `^(.*/proc)/(\d+)/((root|cwd|exe|fd)(/\d+)?)$`
)

func main() {
	out := bufio.NewWriter(os.Stdout)
	// Flush returns the first error of writing.
	say := func(words ...any) { _, _ = fmt.Fprintln(out, words...) }
	p := prober{
		magic: regexp.MustCompile(magic), tried: map[string]int{},
		report: func(how, path string) { say(how, path) },
	}
	skip := regexp.MustCompile(threads)
	// What cannot be listed is skipped: names in it are unknown, too.
	_ = filepath.WalkDir("/", func(path string, entry fs.DirEntry, err error) error {
		if entry == nil || err != nil && !entry.IsDir() {
			return nil
		}
		if skip.MatchString(path) {
			return fs.SkipDir
		}
		if err == nil { // else a folder that was tried before it was listed
			p.try(path, entry.Type())
		}
		return nil
	})
	for _, folder := range slices.Sorted(maps.Keys(p.tried)) {
		say("tried", p.tried[folder], folder)
	}
	if err := out.Flush(); err != nil {
		os.Exit(1)
	}
}

type prober struct {
	magic  *regexp.Regexp
	tried  map[string]int // number of paths by the first two folders
	report func(how, path string)
}

func (p *prober) try(path string, kind fs.FileMode) {
	top := strings.Split(path, "/")
	p.tried[strings.Join(top[:min(len(top), 3)], "/")]++
	switch {
	case kind.IsDir():
		p.tryFolder(path)
	case kind&fs.ModeSymlink != 0:
		if p.magic.MatchString(path) {
			p.tryLink(path)
		}
		return
	case kind&fs.ModeSocket != 0:
		p.trySocket(path)
	default:
		p.tryFile(path)
	}
	p.tryMode(path)
}

// tryFolder makes a folder, which in a file system of cgroups is a cgroup.
func (p *prober) tryFolder(path string) {
	made := filepath.Join(path, "made-by-test-deploy")
	if unix.Mkdir(made, 0o700) == nil {
		p.report("mkdir", p.name(path))
		_ = unix.Rmdir(made)
	}
}

// tryFile opens a file or a device for writing, and writes nothing.
func (p *prober) tryFile(path string) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err == nil {
		p.report("open", p.name(path))
		_ = unix.Close(fd)
	}
}

// name returns the path with the program in place of its process, where it leads to a file of a
// process: /host/proc/[/usr/bin/program]/fd/1.
func (p *prober) name(path string) string {
	parts := p.magic.FindStringSubmatch(path)
	if parts == nil {
		return path
	}
	program, err := os.Readlink(parts[1] + "/" + parts[2] + "/exe")
	if err != nil {
		program = parts[2]
	}
	return parts[1] + "/[" + program + "]/" + parts[3]
}

// tryLink follows a link into another mount.
func (p *prober) tryLink(path string) {
	var stat unix.Stat_t
	if unix.Stat(path, &stat) != nil {
		return
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		p.tryFolder(path)
	} else {
		p.tryFile(path)
	}
}

// trySocket connects: a read-only mount does not prevent that.
func (p *prober) trySocket(path string) {
	for _, kind := range []string{"unix", "unixgram", "unixpacket"} {
		dialer := net.Dialer{Timeout: time.Second}
		if c, err := dialer.DialContext(context.Background(), kind, path); err == nil {
			p.report("connect", path)
			_ = c.Close()
			return
		}
	}
}

// tryMode sets the mode that a file has: an owner may do that without any capability, and write
// then. In procfs the kernel lets the owner do so, too, where nothing can be written.
func (p *prober) tryMode(path string) {
	var stat unix.Stat_t
	var system unix.Statfs_t
	if unix.Lstat(path, &stat) != nil || unix.Statfs(path, &system) != nil || system.Flags&unix.ST_RDONLY == 0 &&
		system.Type == unix.PROC_SUPER_MAGIC {
		return
	}
	if unix.Chmod(path, stat.Mode&0o7777) == nil {
		p.report("chmod", path)
	}
}
