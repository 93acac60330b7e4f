// Package cluster starts a real Kubernetes of one node on a Linux machine, in seconds: etcd, API
// server, controller manager, scheduler and kubelet from Go modules, with a DRA driver of simulated
// GPUs. Everything runs in namespaces of its own, whose process 1 ends with whoever started it, so
// that no process, mount or interface stays behind, even after a crash, and clusters side by side
// do not meet.
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

	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/plugin"
)

// Runtime says which container runtime the kubelet talks to.
type Runtime string

const (
	// Fake runs nothing: pods go through their whole life without a process. What the kubelet says
	// of them is the same. A container with the command ["sleep", "3s"] or ["fail", "3s"] ends by
	// itself that long after its start.
	Fake Runtime = "fake"
	// Containerd runs containers with runc: processes, cgroups, network, CDI, logs and exec are
	// real. It needs root and Debian's packages runc and containernetworking-plugins. The image
	// workload:1 is there (cmd/workload says what it runs), others come by [Cluster.ImportImage];
	// none is pulled, since there is no network beyond the node.
	Containerd Runtime = "containerd"
)

// Options say how to start a cluster.
type Options struct {
	Runtime Runtime   // Fake when empty.
	Dir     string    // The folder of the cluster's files, which Stop removes; a temporary one when empty.
	Log     io.Writer // Receives the progress of builds; nothing does when nil.

	// Kubelet is the version of the kubelet, such as v1.36.3, if it is another than that
	// of the rest of Kubernetes. Its first build takes minutes.
	Kubelet string

	// Gates are feature gates to set in all components. With any, the API server serves all APIs in
	// beta.
	Gates []string

	// Bus is the address of a D-Bus on which the kubelet finds logind, which tells it of a shutdown of
	// the node; empty: there is none, and the kubelet does not look for it.
	Bus string

	// Persistent lets the cluster outlive the calling process.
	Persistent bool
}

// Cluster is a cluster that runs.
type Cluster struct {
	kube    string // The program of Kubernetes and etcd.
	ctr     string // containerd's client; empty with another runtime.
	dir     *folder
	process *exec.Cmd // Starts process 1, and ends after it; nil in a cluster that another process has started.
	stdin   io.WriteCloser

	mu      sync.Mutex // Held for one order and its answer.
	answers *bufio.Reader
}

// Start builds what is not in the cache, starts a cluster, and returns when its node is ready, its
// devices are published and pods can be made. The cluster ends with Stop, and with the calling
// process unless it is to persist. The context bounds the start only.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if o.Log == nil {
		o.Log = io.Discard
	}
	programs, err := o.build(ctx)
	if err != nil {
		return nil, err
	}
	return o.start(ctx, programs)
}

// start starts a cluster of programs that are built.
func (o Options) start(ctx context.Context, programs node.Config) (*Cluster, error) {
	dir, err := newFolder(o.Dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{kube: programs.Program, dir: dir}
	if programs.Containerd != "" {
		c.ctr = filepath.Join(programs.Containerd, "ctr")
	}
	if err := c.launch(ctx, programs, o.Persistent); err != nil {
		return nil, errors.Join(err, context.Cause(ctx), c.Stop())
	}
	return c, nil
}

// build returns what is to run, and builds what is not in the cache.
func (o Options) build(ctx context.Context) (node.Config, error) {
	var c node.Config
	switch o.Runtime {
	case Fake, "":
	case Containerd:
		if os.Geteuid() != 0 {
			return c, errors.New("start a cluster: containerd needs root")
		}
		var err error
		if c.Containerd, err = buildContainerd(ctx, o.Log); err != nil {
			return c, err
		}
	default:
		return c, fmt.Errorf("start a cluster: there is no runtime %q", o.Runtime)
	}
	var err error
	if c.Program, err = Build(ctx, o.Log); err != nil {
		return c, err
	}
	c.Kubelet, c.Gates, c.Bus = c.Program, strings.Join(o.Gates, ","), o.Bus
	if o.Kubelet != "" && o.Kubelet != Kubernetes {
		if c.Kubelet, err = buildKubelet(ctx, o.Kubelet, o.Log); err != nil {
			return c, err
		}
	}
	c.Self, c.Workload, err = buildOurs(ctx)
	return c, err
}

// launch starts process 1 and waits until the cluster is ready.
func (c *Cluster) launch(ctx context.Context, programs node.Config, persistent bool) error {
	for name, target := range map[string]string{"kube": c.kube, "ctr": c.ctr} {
		if target == "" {
			continue
		}
		if err := os.Symlink(target, c.path(name)); err != nil {
			return fmt.Errorf("name the cluster's program: %w", err)
		}
	}
	c.process = c.nodeCommand(context.WithoutCancel(ctx), programs, persistent)
	// A file, not a pipe to here: the cluster may outlive this process, and must not hold its
	// caller's output open.
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
		return fmt.Errorf("start a cluster: %w", err)
	}
	c.answers = bufio.NewReader(stdout)
	stop := context.AfterFunc(ctx, c.end)
	defer stop()
	if err := c.await(); err != nil {
		return fmt.Errorf("start a cluster: %w", err)
	}
	return nil
}

// await waits until the cluster is ready.
func (c *Cluster) await() error {
	started, err := c.line()
	if err != nil {
		return err
	}
	number, ok := strings.CutPrefix(started, "started ")
	pid, err := strconv.Atoi(number)
	if !ok || err != nil {
		return fmt.Errorf("the cluster begins with %q", started)
	}
	if err := c.dir.setPID(pid); err != nil {
		return err
	}
	return c.answer("ready")
}

// nodeCommand returns the command that runs a new cluster. It is the leader of a session, so that
// Ctrl-C does not reach it: it is ended by the end of its standard input.
func (c *Cluster) nodeCommand(ctx context.Context, programs node.Config, persistent bool) *exec.Cmd {
	cmd := exec.CommandContext(ctx, programs.Self, "node",
		"-dir="+c.dir.path, "-kube="+c.kube, "-kubelet="+programs.Kubelet, "-containerd="+programs.Containerd,
		"-workload="+programs.Workload, "-gates="+programs.Gates, "-bus="+programs.Bus,
		"-persistent="+strconv.FormatBool(persistent), "-rootless="+strconv.FormatBool(os.Geteuid() != 0))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// Stop ends the cluster and removes its files. All its processes have ended when it returns. It is
// an error that the cluster had ended before, as it does with a component that ends unasked.
func (c *Cluster) Stop() error {
	var unasked error
	if c.process != nil && c.process.Process != nil {
		unasked = c.EndedUnasked()
		c.end()
		_ = c.process.Wait() // Says only that it was told to.
	}
	return errors.Join(unasked, c.dir.remove())
}

// EndedUnasked returns why the cluster has ended although nobody asked it to, nil if it runs.
func (c *Cluster) EndedUnasked() error {
	said, err := os.ReadFile(c.path("start.log"))
	if err != nil {
		return fmt.Errorf("read what the cluster said: %w", err)
	}
	if _, reason, ended := strings.Cut("\n"+string(said), "\ncluster: "); ended {
		return fmt.Errorf("the cluster ended unasked: %s", reason)
	}
	return nil
}

// end tells the process that has started process 1 to end that, and to tidy up.
func (c *Cluster) end() { _ = c.process.Process.Signal(syscall.SIGTERM) }

func (c *Cluster) path(name string) string { return filepath.Join(c.dir.path, name) }

// Dir is the folder of the cluster's files: log/NAME.log holds what a component said.
func (c *Cluster) Dir() string { return c.dir.path }

// Kubeconfig is the file of the administrator's access. Its address is one of the cluster's network
// namespace.
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
func (c *Cluster) Journal() ([]plugin.Event, error) {
	return plugin.ReadJournal(c.path("journal.jsonl"))
}

// SetUnhealthy names the devices that the driver says are unhealthy: these and no others.
func (c *Cluster) SetUnhealthy(devices ...string) error {
	return gpudriver.SetNames(c.path("unhealthy"), devices...)
}

// SetReplaced names the devices of the simulated GPUs' driver whose hardware was replaced by
// another: these and no others. The driver publishes them with another UUID, under the same name.
func (c *Cluster) SetReplaced(devices ...string) error {
	return gpudriver.SetNames(c.path("replaced"), devices...)
}

// KubeletRoot is the kubelet's folder, for --kubelet.root.
func (c *Cluster) KubeletRoot() string { return c.path("kubelet") }

// Manifests is the kubelet's folder of the manifests of static pods.
func (c *Cluster) Manifests() string { return c.path(node.Manifests) }

// PodLogs is the kubelet's folder of the pods' logs, for --path.podlogs.
func (c *Cluster) PodLogs() string { return c.path("pods") }

// CDI is the folder of the CDI specs that the driver writes, for --path.cdi.
func (c *Cluster) CDI() string { return c.path("cdi") }

// Command returns a command that runs inside the cluster's network namespace alone: it sees the
// files and processes of the caller, and reaches the API server.
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

// Kubectl runs kubectl as the administrator, with the input given, and returns its standard output.
// Its standard error is in the error.
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

// StopComponent kills a component, as a crash would: cri, etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, kubelet or driver.
func (c *Cluster) StopComponent(name string) error { return c.order("stop " + name) }

// StartComponent starts a component that was stopped, and returns when it is ready.
func (c *Cluster) StartComponent(name string) error { return c.order("start " + name) }

// PauseComponent makes a component stand still: it accepts connections and answers nothing.
func (c *Cluster) PauseComponent(name string) error { return c.order("pause " + name) }

// ResumeComponent makes a component that was paused go on.
func (c *Cluster) ResumeComponent(name string) error { return c.order("resume " + name) }

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

// line reads one line of process 1, or of who starts it.
func (c *Cluster) line() (string, error) {
	line, err := c.answers.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("read the answer of process 1: %w", err)
	}
	return strings.TrimSpace(line), nil
}

// answer reads one line of process 1, which should be the one that is wanted.
func (c *Cluster) answer(want string) error {
	line, err := c.line()
	if err != nil {
		return err
	}
	if reason, ok := strings.CutPrefix(line, "error "); ok {
		return errors.New(reason)
	}
	if line != want {
		return fmt.Errorf("process 1 answers %q", line)
	}
	return nil
}
