package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// readyWithin bounds how long one component may take until it is ready: seconds, or a minute on a
// busy machine.
const readyWithin = 2 * time.Minute

// component is one program of the cluster. Its output goes to log/NAME.log.
type component struct {
	name  string
	args  []string                    // The command line, the program first.
	env   []string                    // Variables that it has besides.
	ready func(context.Context) error // Returns nil when it is ready; asked again and again.

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

// await waits until something is ready.
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
	// The end of process 1 ends it.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), c.args[0], c.args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = n.path("empty"), log, log
	// By default Go's garbage collector takes a tenth of the components' time.
	cmd.Env = slices.Concat([]string{"GOGC=400"}, os.Environ(), c.env)
	if err := cmd.Start(); err != nil {
		return err
	}
	c.process, c.stopping, c.done = cmd.Process, false, make(chan struct{})
	go n.watch(c, cmd)
	return nil
}

// watch reports the end of a component that nobody asked to stop.
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

// stop kills the component, as a crash would, and waits for its end.
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

// signal sends the component a signal.
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

// poll asks until the answer is no error, and returns the last one when the context ends first.
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
