package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// ContainerdVersion is the version of containerd. Its programs are built separately, because they
// need another version of the CRI API than Kubernetes does.
const ContainerdVersion = "v2.3.7"

const (
	containerdModule = "github.com/containerd/containerd/v2"
	containerdTags   = "no_btrfs no_devmapper no_zfs"
)

// BuildAll builds what the user's cache lacks of Kubernetes, of a kubelet of another version if one
// is given, and of containerd if the user is root, because containerd needs root.
func BuildAll(ctx context.Context, kubelet string, log io.Writer) error {
	_, err := Build(ctx, log)
	if kubelet != "" && kubelet != Kubernetes {
		_, kubeletErr := buildKubelet(ctx, kubelet, log)
		err = errors.Join(err, kubeletErr)
	}
	if os.Geteuid() == 0 {
		_, containerdErr := buildContainerd(ctx, log)
		err = errors.Join(err, containerdErr)
	}
	return err
}

// buildContainerd builds containerd, its shim and its client, unless the user's cache has them. It
// returns their folder.
func buildContainerd(ctx context.Context, log io.Writer) (string, error) {
	compiler, err := goOutput(ctx, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", err
	}
	folder, err := cacheFolder([]byte(strings.Join([]string{containerdModule, ContainerdVersion, containerdTags, compiler},
		"\n")))
	if err != nil {
		return "", err
	}
	folder = filepath.Join(folder, "containerd")
	return folder, buildOnce(folder, log, "containerd "+ContainerdVersion, func(output string) error {
		args := []string{"install", "-v", "-trimpath", "-ldflags=-s -w", "-tags=" + containerdTags}
		for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
			args = append(args, containerdModule+"/cmd/"+name+"@"+ContainerdVersion)
		}
		cmd := goCommand(ctx, args...)
		cmd.Env = append(cmd.Env, "CGO_ENABLED=0", "GOBIN="+output)
		return follow(cmd, "containerd", log)
	})
}

// Root is the node's file system, as a path that other processes can use. Root()/sys is a sysfs of
// the node's network namespace and has the pods' cgroups. Root()/proc shows the node's PID
// namespace; in the caller's /proc the same processes have other numbers.
func (c *Cluster) Root() string { return fmt.Sprintf("/proc/%d/root", c.dir.pid) }

// RuntimeSocket is the socket of the container runtime.
func (c *Cluster) RuntimeSocket() string {
	fake := c.path(node.FakeSocket)
	if _, err := os.Stat(fake); err == nil {
		return fake
	}
	return c.Root() + node.ContainerdSocket
}

// ImportImage imports an image into containerd from a tar file, as "make image-tar" writes it. When
// it returns, pods can use the image by the name in the file. They must not pull it: set
// imagePullPolicy to Never, or to IfNotPresent with a tag other than latest.
//
// This is almost all that a test of a DaemonSet needs. The node has the usual paths
// (/var/lib/kubelet, /var/log/pods, /var/run/cdi, /proc, /sys). Pods reach the API server as in any
// cluster, with the token and the rights of their ServiceAccount. The test reaches pods through the
// API server's proxy:
//
//	c, err := cluster.Start(ctx, cluster.Options{Runtime: cluster.Containerd, Log: os.Stderr})
//	err = c.ImportImage(ctx, "bin/image.tar")
//	_, err = c.Kubectl(ctx, manifests, "apply", "-f", "-")
//	_, err = c.Kubectl(ctx, "", "rollout", "status", "daemonset/dra-exporter", "-n", "dra-exporter", "--timeout=1m")
//	path := "/api/v1/namespaces/dra-exporter/pods/" + pod + ":10985/proxy/metrics"
//	metrics, err := c.Kubectl(ctx, "", "get", "--raw", path)
func (c *Cluster) ImportImage(ctx context.Context, file string) error {
	if _, err := c.ctrOutput(ctx, "images", "import", file); err != nil {
		return fmt.Errorf("import %s: %w", file, err)
	}
	for {
		// The CRI plugin of containerd learns of images by events and then labels them.
		images, err := c.ctrOutput(ctx, "images", "ls")
		if err != nil {
			return fmt.Errorf("list images: %w", err)
		}
		_, rows, _ := strings.Cut(strings.TrimSpace(images), "\n")
		if strings.Count(rows, "\n")+1 == strings.Count(rows, "io.cri-containerd.image=managed") {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the kubelet's side of containerd: %w", context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ctrOutput runs ctr, the client of containerd, and returns its output.
func (c *Cluster) ctrOutput(ctx context.Context, args ...string) (string, error) {
	if c.ctr == "" {
		return "", errors.New("the cluster's runtime is not containerd")
	}
	cmd := exec.CommandContext(ctx, c.ctr, append([]string{
		"--address=" + c.Root() + node.ContainerdSocket, "--namespace=" + node.ContainerdNamespace,
	}, args...)...)
	return output(cmd)
}
