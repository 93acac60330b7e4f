package sysfs

import (
	"errors"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

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
	for {
		fd, err := unix.Openat2(int(root), path, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_DIRECTORY | unix.O_NONBLOCK,
			Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
		})
		if !errors.Is(err, unix.EINTR) {
			return Dir(fd), err
		}
	}
}

// IsSysfs reports whether an open folder is in a sysfs, and not in another file system that a pod
// has mounted.
func IsSysfs(dir Dir) bool {
	var stat unix.Statfs_t
	return unix.Fstatfs(int(dir), &stat) == nil && stat.Type == unix.SYSFS_MAGIC
}
