// Package cluster starts a real one-node Kubernetes cluster on a Linux machine within seconds:
// etcd, API server, controller manager, scheduler and kubelet from Go modules, with a DRA driver of
// simulated GPUs. All of it runs in its own namespaces. Process 1 of these namespaces ends with the
// process that started it, so no process, mount or network interface remains, even after a crash.
// Clusters that run at the same time do not affect each other.
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

// Runtime is the container runtime that the kubelet uses.
type Runtime string

const (
	// Fake starts no processes, but pods go through their whole life cycle, and the kubelet reports
	// them as usual. A container with the command ["sleep", "3s"] or ["fail", "3s"] terminates 3 s
	// after its start, with status 0 or 1.
	Fake Runtime = "fake"
	// Containerd runs containers with runc: processes, cgroups, network, CDI, logs and exec are
	// real. It needs root and the Debian packages runc and containernetworking-plugins. The image
	// workload:1 is present (see cmd/workload); [Cluster.ImportImage] adds others. Images can't be
	// pulled, because the node has no network access to the outside.
	Containerd Runtime = "containerd"
)

// Options configures a cluster.
type Options struct {
	Runtime Runtime   // The default is Fake.
	Dir     string    // The folder of the cluster's files. Stop removes it. The default is a temporary folder.
	Log     io.Writer // Receives the progress of builds. Nil discards it.

	// Kubelet is the version of the kubelet, such as v1.36.3. The default is the version of the
	// other components. The first build of another version takes minutes.
	Kubelet string

	// Gates are the feature gates to set in all components. If there are any, the API server also
	// serves all beta APIs.
	Gates []string

	// Bus is the address of the D-Bus on which the kubelet finds logind, which announces node
	// shutdowns. If it is empty, the kubelet does not use logind.
	Bus string

	// Persistent keeps the cluster running after the calling process has ended.
	Persistent bool
}

// Cluster is a running cluster.
type Cluster struct {
	kube    string // The program of Kubernetes and etcd.
	ctr     string // The client of containerd; empty with another runtime.
	dir     *folder
	process *exec.Cmd // Starts process 1 and ends after it. Nil if another process started the cluster.
	stdin   io.WriteCloser

	mu      sync.Mutex // Held while an order is sent and answered.
	answers *bufio.Reader
}

// Start builds what the cache lacks, and starts a cluster. It returns when the node is ready, its
// devices are published and pods can be created. The cluster ends with Stop or with the calling
// process, unless Persistent is set. The context applies to the start only.
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

// start starts a cluster with programs that are already built.
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

// build builds what the cache lacks, and returns the paths of the programs.
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
	// This is a file and not a pipe: a persistent cluster outlives this process and must not keep
	// the caller's output open.
	stderr, err := os.Create(c.path("start.log"))
	if err != nil {
		return fmt.Errorf("start a cluster: %w", err)
	}
	defer stderr.Close()
	c.process.Stderr = stderr
	c.process.ExtraFiles = []*os.File{c.dir.lock} // The cluster is running as long as this lock is held.
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

// nodeCommand returns the command that runs a new cluster. The process leads its own session, so
// Ctrl-C does not reach it. It ends when its standard input is closed.
func (c *Cluster) nodeCommand(ctx context.Context, programs node.Config, persistent bool) *exec.Cmd {
	cmd := exec.CommandContext(ctx, programs.Self, "node",
		"-dir="+c.dir.path, "-kube="+c.kube, "-kubelet="+programs.Kubelet, "-containerd="+programs.Containerd,
		"-workload="+programs.Workload, "-gates="+programs.Gates, "-bus="+programs.Bus,
		"-persistent="+strconv.FormatBool(persistent), "-rootless="+strconv.FormatBool(os.Geteuid() != 0))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// Stop ends the cluster and removes its files. When it returns, all processes of the cluster have
// ended. It returns an error if the cluster had already ended, for example because a component
// crashed.
func (c *Cluster) Stop() error {
	var unasked error
	if c.process != nil && c.process.Process != nil {
		unasked = c.endedUnasked()
		c.end()
		_ = c.process.Wait() // The error only says that the process was stopped.
	}
	return errors.Join(unasked, c.dir.remove())
}

// endedUnasked returns the reason if the cluster has ended without Stop, and nil if it is running.
func (c *Cluster) endedUnasked() error {
	said, err := os.ReadFile(c.path("start.log"))
	if err != nil {
		return fmt.Errorf("read what the cluster said: %w", err)
	}
	if _, reason, ended := strings.Cut("\n"+string(said), "\ncluster: "); ended {
		return fmt.Errorf("the cluster ended unasked: %s", reason)
	}
	return nil
}

// end tells the process that started process 1 to stop it and to clean up.
func (c *Cluster) end() { _ = c.process.Process.Signal(syscall.SIGTERM) }

func (c *Cluster) path(name string) string { return filepath.Join(c.dir.path, name) }

// Dir is the folder of the cluster's files. log/NAME.log has the output of component NAME.
func (c *Cluster) Dir() string { return c.dir.path }

// Kubeconfig is the path of the administrator's kubeconfig. Its server address is valid only in the
// cluster's network namespace.
func (c *Cluster) Kubeconfig() string { return c.path("kubeconfig") }

// Client returns the administrator's client configuration. It works in any network namespace.
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

// Journal returns the events of the drivers: when they prepared and unprepared claims.
func (c *Cluster) Journal() ([]plugin.Event, error) {
	return plugin.ReadJournal(c.path("journal.jsonl"))
}

// SetUnhealthy sets which devices the driver reports as unhealthy. All others are healthy.
func (c *Cluster) SetUnhealthy(devices ...string) error {
	return gpudriver.SetNames(c.path("unhealthy"), devices...)
}

// SetReplaced sets which simulated GPUs have replaced hardware. The driver publishes each of them
// under the same name with another UUID. All others keep their original hardware.
func (c *Cluster) SetReplaced(devices ...string) error {
	return gpudriver.SetNames(c.path("replaced"), devices...)
}

// KubeletRoot is the kubelet's root folder, for --kubelet.root.
func (c *Cluster) KubeletRoot() string { return c.path("kubelet") }

// Manifests is the kubelet's folder of static pod manifests.
func (c *Cluster) Manifests() string { return c.path(node.Manifests) }

// PodLogs is the kubelet's folder of pod logs, for --path.podlogs.
func (c *Cluster) PodLogs() string { return c.path("pods") }

// CDI is the folder in which the drivers write CDI specs, for --path.cdi.
func (c *Cluster) CDI() string { return c.path("cdi") }

// Command returns a command that runs in the cluster's network namespace and can reach the API
// server. It sees the files and processes of the caller, not those of the cluster.
func (c *Cluster) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	enter := []string{"--target=" + strconv.Itoa(c.dir.pid), "--net"}
	if os.Geteuid() != 0 {
		enter = append(enter, "--user", "--preserve-credentials")
	}
	return exec.CommandContext(ctx, "nsenter", append(append(enter, "--", name), args...)...)
}

// KubectlCommand returns a kubectl command with the administrator's kubeconfig.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	return c.Command(ctx, c.kube, append([]string{"kubectl", "--kubeconfig=" + c.Kubeconfig()}, args...)...)
}

// Kubectl runs kubectl as the administrator with the given standard input and returns its standard
// output. If it fails, the error contains its standard error.
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

// StopComponent kills a component: cri, etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, kubelet or driver. To the other components this looks like a crash.
func (c *Cluster) StopComponent(name string) error { return c.order("stop " + name) }

// StartComponent starts a stopped component and returns when it is ready.
func (c *Cluster) StartComponent(name string) error { return c.order("start " + name) }

// PauseComponent stops a component's execution: it still accepts connections but never answers.
func (c *Cluster) PauseComponent(name string) error { return c.order("pause " + name) }

// ResumeComponent resumes a paused component.
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

// line reads one line from process 1 or from the process that starts it.
func (c *Cluster) line() (string, error) {
	line, err := c.answers.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("read the answer of process 1: %w", err)
	}
	return strings.TrimSpace(line), nil
}

// answer reads one line from process 1 and returns an error unless it is the expected one.
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
