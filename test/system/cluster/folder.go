package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// longestDir limits the length of the path of a cluster's folder: the path of a socket has at most
// 107 bytes.
const longestDir = 60

// folder is the folder of a cluster. Its file "lock" contains the PID of process 1 and is locked as
// long as a process of the cluster is running.
type folder struct {
	path string
	lock *os.File
	pid  int
}

// temporary is the prefix of the names of temporary folders.
const temporary = "dra-cluster-"

// sweep removes the temporary folders of clusters whose calling process was killed before Stop.
func sweep() {
	paths, _ := filepath.Glob(filepath.Join(os.TempDir(), temporary+"*")) // The pattern is well-formed.
	for _, path := range paths {
		f, err := openFolder(path) // Removes it if no cluster runs there. Ignores errors: it may belong to another user.
		if err == nil && f != nil {
			_ = f.lock.Close()
		}
	}
}

// newFolder creates and locks a folder, and removes the files of an earlier cluster from it. If
// path is empty, the folder is a temporary one.
func newFolder(path string) (*folder, error) {
	if path != "" {
		return lockFolder(path)
	}
	sweep()
	var err error
	for range 3 { // Another sweep may remove the folder before it is locked.
		var f *folder
		if f, err = lockFolder(""); err == nil {
			return f, nil
		}
	}
	return nil, err
}

func lockFolder(path string) (*folder, error) {
	path, err := folderPath(path)
	if err != nil {
		return nil, fmt.Errorf("make the cluster's folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make the cluster's folder: %w", err)
	}
	f := &folder{path: path, lock: lock}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w (a cluster runs there)", path, err), lock.Close())
	}
	if _, err := os.Stat(lock.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the cluster's folder: %w", err), lock.Close())
	}
	if err := f.clear(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return f, nil
}

func folderPath(path string) (string, error) {
	if path == "" {
		return os.MkdirTemp("", temporary)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if len(path) > longestDir {
		return "", fmt.Errorf("%s is longer than the %d bytes that leave room for sockets below it", path, longestDir)
	}
	return path, os.MkdirAll(path, 0o755)
}

// openFolder returns the folder of a cluster that another process has started, or nil if no cluster
// is running there.
func openFolder(path string) (*folder, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open the cluster's folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the cluster's folder: %w", err)
	}
	f := &folder{path: path, lock: lock}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		return nil, f.remove()
	}
	content, err := io.ReadAll(lock)
	if err == nil {
		f.pid, err = strconv.Atoi(strings.TrimSpace(string(content)))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the number of process 1: %w", err), lock.Close())
	}
	return f, nil
}

func (f *folder) setPID(pid int) error {
	f.pid = pid
	err := f.lock.Truncate(0)
	if err == nil {
		_, err = f.lock.WriteAt([]byte(strconv.Itoa(pid)+"\n"), 0)
	}
	if err != nil {
		return fmt.Errorf("write the number of process 1: %w", err)
	}
	return nil
}

// clear removes only the files that a cluster creates, because the user may have named any folder.
func (f *folder) clear() error {
	if err := node.RemoveCgroups(f.path); err != nil {
		return err
	}
	for _, name := range []string{
		"api.sock", "cdi", "certs", "cni", "containerd.toml", "cri.sock", "ctr", "empty", "etcd", "front-proxy.crt",
		"front-proxy.key", "journal.jsonl", "kube", "kubeconfig", "kubelet", "kubelet.yaml",
		"log", node.Manifests, "pods", "replaced", "scheduler.yaml", "service-account.key",
		"start.log", "tokens.csv", "unhealthy",
		"workload.tar",
	} {
		if err := os.RemoveAll(filepath.Join(f.path, name)); err != nil {
			return fmt.Errorf("remove the cluster's files: %w", err)
		}
	}
	return nil
}

// remove removes the cluster's files, removes the folder if it is then empty, and releases the
// lock.
func (f *folder) remove() error {
	err := f.clear()
	if removed := os.Remove(f.lock.Name()); removed != nil {
		err = errors.Join(err, fmt.Errorf("remove the cluster's lock: %w", removed))
	}
	if removed := os.Remove(f.path); removed != nil && !errors.Is(removed, syscall.ENOTEMPTY) {
		err = errors.Join(err, fmt.Errorf("remove the cluster's folder: %w", removed))
	}
	return errors.Join(err, f.lock.Close())
}

// Attach returns the cluster that another process has started in a folder. The returned cluster
// does not support Stop and the commands for components.
func Attach(dir string) (*Cluster, error) {
	f, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, fmt.Errorf("no cluster runs in %s", dir)
	}
	kube, err := os.Readlink(filepath.Join(dir, "kube"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find the cluster's program: %w", err), f.lock.Close())
	}
	ctr, err := os.Readlink(filepath.Join(dir, "ctr"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("find the client of containerd: %w", err), f.lock.Close())
	}
	return &Cluster{kube: kube, ctr: ctr, dir: f}, nil
}

// Down ends the cluster that another process has started in a folder, if any, and removes its
// files.
func Down(dir string) error {
	f, err := openFolder(dir)
	if err != nil || f == nil {
		return err
	}
	if err := syscall.Kill(f.pid, syscall.SIGKILL); err != nil {
		return errors.Join(fmt.Errorf("end process 1: %w", err), f.lock.Close())
	}
	if err := flock(f.lock); err != nil {
		return errors.Join(err, f.lock.Close())
	}
	return f.remove()
}

// flock takes an exclusive lock on a file and waits until it is free.
func flock(file *os.File) error {
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
	}
}
