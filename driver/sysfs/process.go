package sysfs

import (
	"errors"

	"golang.org/x/sys/unix"
)

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
