// Package node is the inside of a cluster: it runs as process 1 of fresh namespaces, starts
// Kubernetes there, and stays until whoever started it goes away. With process 1 the kernel ends
// every process, mount and interface of the namespaces, so nothing is left behind however it ends.
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

// Name and Address are the node's name in Kubernetes and its address, which documentation alone
// uses (RFC 5737).
const (
	Name    = "node1"
	Address = "192.0.2.10"
)

// Socket is the file, in the cluster's folder, that leads to the API server from any network
// namespace.
const Socket = "api.sock"

// FakeSocket is the socket, in the cluster's folder, of the runtime that runs nothing.
const FakeSocket = "cri.sock"

// Manifests is the folder of static pods' manifests, in the cluster's folder.
const Manifests = "manifests"

// Config says what to run and where.
type Config struct {
	Dir        string // The folder of everything that the cluster keeps.
	Program    string // The multi-call program of Kubernetes.
	Kubelet    string // The program of the kubelet, which may be Program.
	Self       string // The program of process 1, "SELF init …", and of the driver, "SELF driver …".
	Containerd string // The folder of containerd's programs; empty: a runtime that runs nothing.
	Workload   string // The program of containerd's image.
	Gates      string // Feature gates to set, with commas between them.
	Bus        string // The address of the D-Bus of logind; empty: none.
	Rootless   bool   // In a user namespace of its own.
	Persistent bool   // Stay when the standard input ends: only a signal ends the cluster.
}

// Run starts the cluster, says "ready" or "error REASON" in one line on out, and then obeys lines
// of in: "stop NAME", "start NAME", "pause NAME" and "resume NAME", where NAME is that of a
// component; each is answered with "ok" or "error REASON". It returns when in ends, unless the
// cluster is to persist, when the context ends, and when a component ends unasked.
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

// node is a cluster that runs.
type node struct {
	Config
	log        *slog.Logger
	components []*component
	exited     chan error // Receives why a component ended unasked.
}

// startAll starts what makes a cluster in order. The end of the lines, before the cluster is ready,
// cancels it.
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

// forwardServer makes the API server reachable from other network namespaces, by a socket, and for
// pods.
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
		// Ends with process 1.
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

// answer writes a line to whoever started the cluster, and may have gone.
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

// enter makes the namespaces, into which the process was born, a machine of its own.
func (n *node) enter(ctx context.Context) error {
	if err := n.enterFiles(); err != nil {
		return err
	}
	// A bridge, since a kernel may lack dummy interfaces. The kubelet and the API server refuse
	// loopback addresses as theirs, and want a default route.
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

// enterFiles gives the node files of its own, and the cluster's folders their usual names beside
// those in the cluster's folder.
func (n *node) enterFiles() error {
	// Shared among the mounts of this namespace, as systemd has them: pods may ask for what is
	// mounted later.
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

// path returns a path below the cluster's folder.
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
