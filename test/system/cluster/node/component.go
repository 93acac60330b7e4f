package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// readyWithin limits how long a component may take to become ready. It takes seconds, or a minute
// on a busy machine.
const readyWithin = 2 * time.Minute

// component is one program of the cluster. Its output is written to log/NAME.log.
type component struct {
	name  string
	args  []string                    // The command line, including the program.
	env   []string                    // Additional environment variables.
	ready func(context.Context) error // Returns nil if the component is ready. It is called repeatedly.

	mu       sync.Mutex
	process  *os.Process
	stopping bool
	done     chan struct{} // Closed when the process has ended.
}

// start starts a component and waits until it is ready.
func (n *node) start(ctx context.Context, c *component) error {
	if err := n.launch(ctx, c); err != nil {
		return fmt.Errorf("start %s: %w", c.name, err)
	}
	if err := n.await(ctx, c.name, c.ready); err != nil {
		return fmt.Errorf("%w; its log ends with: %s", err, n.tail(c))
	}
	return nil
}

// await waits until ready returns nil, at most readyWithin.
func (n *node) await(ctx context.Context, what string, ready func(context.Context) error) error {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err := poll(ctx, ready); err != nil {
		return fmt.Errorf("wait for %s: %w", what, err)
	}
	n.log.Info("ready", "what", what, "seconds", time.Since(begin).Seconds())
	return nil
}

func (n *node) launch(ctx context.Context, c *component) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process != nil {
		return errors.New("it runs already")
	}
	log, err := os.OpenFile(n.logFile(c), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open its log: %w", err)
	}
	defer log.Close()
	// The component does not end with ctx. The kernel kills it when process 1 ends.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), c.args[0], c.args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = n.path("empty"), log, log
	// With the default GOGC, garbage collection takes a tenth of the components' CPU time.
	cmd.Env = slices.Concat([]string{"GOGC=400"}, os.Environ(), c.env)
	if err := cmd.Start(); err != nil {
		return err
	}
	c.process, c.stopping, c.done = cmd.Process, false, make(chan struct{})
	go n.watch(c, cmd)
	return nil
}

// watch waits for the end of a component, and reports it unless stop was called.
func (n *node) watch(c *component, cmd *exec.Cmd) {
	err := cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.process = nil
	close(c.done)
	if !c.stopping {
		n.exited <- fmt.Errorf("%s ended (%w); its log ends with: %s", c.name, err, n.tail(c))
	}
}

// stop kills the component, as in a crash, and waits until it has ended.
func (c *component) stop() error {
	c.mu.Lock()
	if c.process == nil {
		c.mu.Unlock()
		return fmt.Errorf("stop %s: it does not run", c.name)
	}
	c.stopping = true
	err := c.process.Kill()
	done := c.done
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("stop %s: %w", c.name, err)
	}
	<-done
	return nil
}

// signal sends a signal to the component.
func (c *component) signal(s os.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.process == nil {
		return fmt.Errorf("signal %s: it does not run", c.name)
	}
	if err := c.process.Signal(s); err != nil {
		return fmt.Errorf("signal %s: %w", c.name, err)
	}
	return nil
}

func (n *node) logFile(c *component) string { return n.path("log", c.name+".log") }

// tail returns the end of a component's log.
func (n *node) tail(c *component) string {
	const most = 2000
	content, err := os.ReadFile(n.logFile(c))
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(content[max(0, len(content)-most):]))
}

// poll calls ready until it returns nil. If the context ends first, poll returns the last error.
func poll(ctx context.Context, ready func(context.Context) error) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the last answer: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

func ip(ctx context.Context, args ...string) error {
	if output, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %v: %w: %s", args, err, output)
	}
	return nil
}

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
