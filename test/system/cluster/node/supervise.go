package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
)

// Supervise runs "SELF init ARGS…" as process 1 of namespaces of its own, writes "started PID" to
// out first, and returns when that has ended and its cgroups are removed. With the end of the
// context, and with that of the calling thread, process 1 is killed. File 3 of the calling process,
// the lock of the cluster's folder, is handed on. If nobody reads out, the calling process goes on:
// it has the cgroups to remove.
func Supervise(ctx context.Context, out io.Writer, c Config, args []string) error {
	// Process 1 is told of the end of the thread that started it, not of the end of the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// A write to a pipe without reader is an error then. Process 1 inherits nothing of it.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	var groups *cgroups
	if c.Containerd != "" {
		var err error
		if groups, err = makeCgroups(c.Dir); err != nil {
			return errors.Join(err, RemoveCgroups(c.Dir))
		}
	}
	// Held until the cgroups are removed, also against the garbage collector, which would close it.
	lock := os.NewFile(lockFile, "lock")
	defer lock.Close()
	cmd := initCommand(ctx, c, args)
	cmd.ExtraFiles = []*os.File{lock}
	err := groups.inside(cmd.Start)
	if err == nil {
		answer(out, "started "+strconv.Itoa(cmd.Process.Pid))
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("run the first process of the cluster: %w", err)
	}
	return errors.Join(err, RemoveCgroups(c.Dir))
}

func initCommand(ctx context.Context, c Config, args []string) *exec.Cmd {
	attributes := &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS |
			syscall.CLONE_NEWIPC | syscall.CLONE_NEWCGROUP,
	}
	if c.Rootless {
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	cmd := exec.CommandContext(ctx, c.Self, append([]string{"init"}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = attributes
	return cmd
}

// lockFile is the number under which a process of the cluster has the lock of its folder.
const lockFile = 3
