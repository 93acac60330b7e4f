// Package node is the part of a cluster that runs as process 1 of new namespaces. It starts
// Kubernetes there and runs until the process that started it ends. However process 1 ends, the
// kernel then removes all processes, mounts and network interfaces of the namespaces, so nothing
// remains.
package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/forward"
)

// Name and Address are the node's name in Kubernetes and its address. The address is reserved for
// documentation (RFC 5737).
const (
	Name    = "node1"
	Address = "192.0.2.10"
)

// Socket is the name of the socket in the cluster's folder through which processes in other network
// namespaces reach the API server.
const Socket = "api.sock"

// FakeSocket is the name of the fake runtime's socket in the cluster's folder.
const FakeSocket = "cri.sock"

// Manifests is the name of the folder of static pod manifests in the cluster's folder.
const Manifests = "manifests"

// Config configures a cluster.
type Config struct {
	Dir        string // The folder of all files of the cluster.
	Program    string // The program with all Kubernetes components.
	Kubelet    string // The program of the kubelet. It may be Program.
	Self       string // The program of process 1, "SELF init …", and of the driver, "SELF driver …".
	Containerd string // The folder of containerd's programs. If empty, the cluster has the fake runtime.
	Workload   string // The program in the workload image.
	Gates      string // Feature gates to set, separated by commas.
	Bus        string // The address of the D-Bus of logind. If empty, there is no logind.
	Rootless   bool   // Run in a user namespace.
	Persistent bool   // Ignore the end of the standard input. Only a signal ends the cluster.
}

// Run starts the cluster and writes the line "ready" or "error REASON" to out. It then reads
// commands from in: "stop NAME", "start NAME", "pause NAME" and "resume NAME", where NAME is a
// component. It answers each with "ok" or "error REASON". It returns when the context ends, when a
// component ends unexpectedly, and, unless Persistent is set, at the end of in.
func Run(ctx context.Context, in io.Reader, out io.Writer, c Config) error {
	n := &node{Config: c, log: slog.New(slog.NewTextHandler(os.Stderr, nil)), exited: make(chan error, 16)}
	lines := make(chan string)
	go readLines(in, lines)
	if err := n.startAll(ctx, lines); err != nil {
		answer(out, "error "+oneLine(err))
		return err
	}
	answer(out, "ready")
	return n.serve(ctx, lines, out)
}

// node is a running cluster.
type node struct {
	Config
	log        *slog.Logger
	components []*component
	exited     chan error // Receives the reason when a component ends unexpectedly.
}

// startAll starts all parts of the cluster in order. If lines is closed before the cluster is
// ready, startAll stops, unless Persistent is set.
func (n *node) startAll(ctx context.Context, lines chan string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- n.boot(ctx) }()
	for {
		select {
		case err := <-done:
			return err
		case err := <-n.exited:
			cancel(err)
			return errors.Join(err, <-done)
		case _, ok := <-lines:
			if !ok && !n.Persistent {
				cancel(io.ErrClosedPipe)
				return <-done
			}
			lines = nil
		}
	}
}

func (n *node) boot(ctx context.Context) error {
	if err := n.writeFiles(); err != nil {
		return err
	}
	if err := n.enter(ctx); err != nil {
		return err
	}
	if err := n.forwardServer(ctx); err != nil {
		return err
	}
	n.components = n.kubernetes()
	for _, c := range n.components {
		if err := n.start(ctx, c); err != nil {
			return err
		}
	}
	return n.await(ctx, "the node and its devices", func(ctx context.Context) error {
		return errors.Join(n.isReady(ctx), n.hasSlices(ctx))
	})
}

// forwardServer forwards connections to the API server from a Unix socket, for processes in other
// network namespaces, and from serviceAddress, for pods.
func (n *node) forwardServer(ctx context.Context) error {
	near := map[string]string{n.path(Socket): "unix"}
	if n.Containerd != "" {
		near[net.JoinHostPort(serviceAddress, "443")] = "tcp"
	}
	for address, network := range near {
		listener, err := new(net.ListenConfig).Listen(ctx, network, address)
		if err != nil {
			return fmt.Errorf("listen for clients of the API server: %w", err)
		}
		// This goroutine runs until process 1 ends.
		go forward.Serve(context.WithoutCancel(ctx), listener, func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", serverAddress)
		})
	}
	return nil
}

func (n *node) serve(ctx context.Context, lines <-chan string, out io.Writer) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-n.exited:
			return err
		case line, ok := <-lines:
			if !ok {
				if !n.Persistent {
					return nil
				}
				lines = nil
				continue
			}
			if err := n.obey(ctx, line); err != nil {
				answer(out, "error "+oneLine(err))
				continue
			}
			answer(out, "ok")
		}
	}
}

// answer writes a line to the process that started the cluster. It ignores errors, because that
// process may have ended.
func answer(out io.Writer, line string) { _, _ = fmt.Fprintln(out, line) }

func (n *node) obey(ctx context.Context, line string) error {
	verb, name, _ := strings.Cut(line, " ")
	for _, c := range n.components {
		if c.name != name {
			continue
		}
		switch verb {
		case "stop":
			return c.stop()
		case "start":
			return n.start(ctx, c)
		case "pause":
			return c.signal(syscall.SIGSTOP)
		case "resume":
			return c.signal(syscall.SIGCONT)
		}
	}
	return fmt.Errorf("unknown order %q", line)
}

// enter sets up the mounts and the network of this process's namespaces.
func (n *node) enter(ctx context.Context) error {
	if err := n.enterFiles(); err != nil {
		return err
	}
	// Use a bridge, because a kernel may lack dummy interfaces. The kubelet and the API server
	// reject loopback addresses and need a default route.
	for _, command := range []string{
		"link set lo up",
		"link add node0 type bridge",
		"addr add " + Address + "/24 dev node0",
		"link set node0 up",
		"route add default dev node0",
	} {
		if err := ip(ctx, strings.Fields(command)...); err != nil {
			return err
		}
	}
	if n.Containerd != "" {
		return n.enterReal(ctx)
	}
	return nil
}

// enterFiles gives the node its own mounts. It also mounts folders of the cluster's folder at their
// usual paths.
func (n *node) enterFiles() error {
	// Use shared propagation in this namespace, as systemd does, so that pods can see mounts that
	// are made later.
	for _, propagation := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|propagation, ""); err != nil {
			return fmt.Errorf("keep mounts in the namespace: %w", err)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, folder := range []string{"/run", "/var/lib", "/var/log"} {
		if err := unix.Mount("tmpfs", folder, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount a tmpfs on %s: %w", folder, err)
		}
	}
	for name, folder := range map[string]string{
		"kubelet": "/var/lib/kubelet", "pods": "/var/log/pods",
		"cdi": "/run/cdi",
	} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return fmt.Errorf("make a folder of the node: %w", err)
		}
		if err := unix.Mount(n.path(name), folder, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", folder, err)
		}
	}
	return nil
}

// path returns a path in the cluster's folder.
func (n *node) path(elem ...string) string {
	return filepath.Join(append([]string{n.Dir}, elem...)...)
}

func readLines(r io.Reader, lines chan<- string) {
	defer close(lines)
	scanner := bufio.NewScanner(r)
	for scanner.Scan() {
		lines <- scanner.Text()
	}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
