// Package cluster starts a real Kubernetes of one node on a Linux machine, in seconds: etcd, API server, controller manager, scheduler and
// kubelet from Go modules, with a DRA driver of simulated GPUs. Everything runs in namespaces of its own, whose process 1 ends
// with whoever started it, so that no process, mount or interface stays behind, even after a crash, and clusters side by
// side do not meet.
package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dra-exporter/dra-exporter/test/cluster/gpudriver"
	"github.com/dra-exporter/dra-exporter/test/cluster/node"
)

// Variant says which container runtime the kubelet talks to.
type Variant string

// Fake is a runtime that runs nothing: pods go through their whole life without a process. What the kubelet says of
// them is the same. A container with the command ["sleep", "3s"] ends by itself that long after its start.
const Fake Variant = "fake"

// Options say how to start a cluster.
type Options struct {
	Variant Variant   // Fake when empty.
	Dir     string    // The folder of the cluster's files, which Stop removes; a temporary one when empty.
	Log     io.Writer // Receives the progress of builds; nothing does when nil.

	// Persistent lets the cluster outlive the calling process.
	Persistent bool
}

// Cluster is a cluster that runs.
type Cluster struct {
	kube    string // The program of Kubernetes and etcd.
	dir     *folder
	process *exec.Cmd // Process 1; nil in a cluster that another process has started.
	stdin   io.WriteCloser

	mu      sync.Mutex // Held for one order and its answer.
	answers *bufio.Reader
}

// Start builds what is not in the cache, starts a cluster, and returns when its node is ready, its devices are published and pods can be
// made. The cluster ends with Stop, and with the calling process unless it is to persist. The context bounds the start only.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Variant != "" && o.Variant != Fake {
		return nil, fmt.Errorf("start a cluster: there is no variant %q", o.Variant)
	}
	kube, err := Build(ctx, o.Log)
	if err != nil {
		return nil, err
	}
	dir, err := newFolder(o.Dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{kube: kube, dir: dir}
	if err := c.launch(ctx, o); err != nil {
		return nil, errors.Join(err, context.Cause(ctx), c.Stop())
	}
	return c, nil
}

// launch starts process 1 and waits until the cluster is ready.
func (c *Cluster) launch(ctx context.Context, o Options) error {
	if err := os.Symlink(c.kube, c.path("kube")); err != nil {
		return fmt.Errorf("name the cluster's program: %w", err)
	}
	program, err := buildNode(ctx)
	if err != nil {
		return err
	}
	c.process = c.nodeCommand(context.WithoutCancel(ctx), program, o.Persistent)
	// A file, not a pipe to here: the cluster may outlive this process, and must not hold its caller's output open.
	stderr, err := os.Create(c.path("start.log"))
	if err != nil {
		return fmt.Errorf("start a cluster: %w", err)
	}
	defer stderr.Close()
	c.process.Stderr = stderr
	c.process.ExtraFiles = []*os.File{c.dir.lock} // Its lock says that the cluster lives.
	stdout, err := c.process.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start a cluster: %w", err)
	}
	if c.stdin, err = c.process.StdinPipe(); err != nil {
		return fmt.Errorf("start a cluster: %w", err)
	}
	if err := c.process.Start(); err != nil {
		return fmt.Errorf("start a cluster in namespaces of its own: %w", err)
	}
	if err := c.dir.setPID(c.process.Process.Pid); err != nil {
		return err
	}
	c.answers = bufio.NewReader(stdout)
	stop := context.AfterFunc(ctx, func() { _ = c.process.Process.Kill() })
	defer stop()
	if err := c.answer("ready"); err != nil {
		return fmt.Errorf("start a cluster: %w", err)
	}
	return nil
}

// nodeCommand returns the command of process 1 of a new cluster. It is the leader of a session, so that Ctrl-C does not reach
// it: it is ended by the end of its standard input.
func (c *Cluster) nodeCommand(ctx context.Context, program string, persistent bool) *exec.Cmd {
	args := []string{"node", "-dir=" + c.dir.path, "-kube=" + c.kube, "-persistent=" + strconv.FormatBool(persistent)}
	attributes := &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS |
			syscall.CLONE_NEWIPC | syscall.CLONE_NEWCGROUP,
	}
	if os.Geteuid() != 0 {
		args = append(args, "-rootless")
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = attributes
	return cmd
}

// Stop ends the cluster and removes its files. All its processes have ended when it returns.
func (c *Cluster) Stop() error {
	if c.process != nil && c.process.Process != nil {
		_ = c.process.Process.Kill()
		_ = c.process.Wait() // Says only that the process was killed.
	}
	return c.dir.remove()
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir.path, name) }

// Dir is the folder of the cluster's files: log/NAME.log holds what a component said.
func (c *Cluster) Dir() string { return c.dir.path }

// Kubeconfig is the file of the administrator's access. Its address is one of the cluster's network namespace.
func (c *Cluster) Kubeconfig() string { return c.path("kubeconfig") }

// Client returns the administrator's access, for clients in any network namespace.
func (c *Cluster) Client() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 500, 1000
	config.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return c.DialServer(ctx) }
	return config, nil
}

// DialServer connects to the API server from any network namespace.
func (c *Cluster) DialServer(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", c.path(node.Socket))
}

// Journal returns when the driver has prepared and unprepared claims.
func (c *Cluster) Journal() ([]gpudriver.Event, error) {
	return gpudriver.ReadJournal(c.path("journal.jsonl"))
}

// KubeletRoot is the kubelet's folder, for --kubelet.root.
func (c *Cluster) KubeletRoot() string { return c.path("kubelet") }

// PodLogs is the kubelet's folder of the pods' logs, for --path.podlogs.
func (c *Cluster) PodLogs() string { return c.path("pods") }

// CDI is the folder of the CDI specs that the driver writes, for --path.cdi.
func (c *Cluster) CDI() string { return c.path("cdi") }

// Command returns a command that runs inside the cluster's network namespace alone: it sees the files and processes of the caller, and
// reaches the API server.
func (c *Cluster) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	enter := []string{"--target=" + strconv.Itoa(c.dir.pid), "--net"}
	if os.Geteuid() != 0 {
		enter = append(enter, "--user", "--preserve-credentials")
	}
	return exec.CommandContext(ctx, "nsenter", append(append(enter, "--", name), args...)...)
}

// KubectlCommand returns kubectl as the administrator runs it.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	return c.Command(ctx, c.kube, append([]string{"kubectl", "--kubeconfig=" + c.Kubeconfig()}, args...)...)
}

// Kubectl runs kubectl as the administrator, with the input given, and returns its standard output. Its standard error is in the error.
func (c *Cluster) Kubectl(ctx context.Context, input string, args ...string) ([]byte, error) {
	cmd := c.KubectlCommand(ctx, args...)
	cmd.Stdin = strings.NewReader(input)
	output, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return output, fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return output, nil
}

// StopComponent kills a component, as a crash would: cri, etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet or driver.
func (c *Cluster) StopComponent(name string) error { return c.order("stop " + name) }

// StartComponent starts a component that was stopped, and returns when it is ready.
func (c *Cluster) StartComponent(name string) error { return c.order("start " + name) }

func (c *Cluster) order(order string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := fmt.Fprintln(c.stdin, order); err != nil {
		return fmt.Errorf("%s: %w", order, err)
	}
	if err := c.answer("ok"); err != nil {
		return fmt.Errorf("%s: %w", order, err)
	}
	return nil
}

// answer reads one line of process 1, which should be the one that is wanted.
func (c *Cluster) answer(want string) error {
	line, err := c.answers.ReadString('\n')
	if err != nil {
		return fmt.Errorf("read the answer of process 1: %w", err)
	}
	line = strings.TrimSpace(line)
	if reason, ok := strings.CutPrefix(line, "error "); ok {
		return errors.New(reason)
	}
	if line != want {
		return fmt.Errorf("process 1 answers %q", line)
	}
	return nil
}
