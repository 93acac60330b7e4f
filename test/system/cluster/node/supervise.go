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

// Supervise runs "SELF init ARGS…" as process 1 of new namespaces. It first writes "started PID" to
// out. It returns when process 1 has ended and its cgroups are removed. Process 1 is killed when
// the context ends or when the calling thread ends. It inherits file 3 of the calling process, the
// lock of the cluster's folder. If out is a broken pipe, the calling process continues, because it
// must remove the cgroups.
func Supervise(ctx context.Context, out io.Writer, c Config, args []string) error {
	// The kernel kills process 1 when the thread that started it ends, even if the process
	// continues.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// With this, writing to a broken pipe returns an error. Process 1 does not inherit the setting.
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
	// This holds the lock until the cgroups are removed. Without the variable, the garbage
	// collector could close the file.
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

// lockFile is the number of the file that holds the lock of the cluster's folder.
const lockFile = 3
