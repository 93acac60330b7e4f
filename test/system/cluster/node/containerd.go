package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/image"
)

// WorkloadImage is the name of the image of pods and sandboxes, whose program is cmd/workload. Pods
// may write workload:1.
const WorkloadImage = "docker.io/library/workload:1"

const (
	// ContainerdSocket is the socket of containerd, in the node's file system.
	ContainerdSocket = "/run/containerd/containerd.sock"
	// ContainerdNamespace is where containerd keeps what belongs to the kubelet.
	ContainerdNamespace = "k8s.io"

	// pods get addresses that documentation alone uses, as the node does (RFC 5737).
	podSubnet = "198.51.100.0/24"
	// serviceAddress is that of the API server for pods, the first of serviceRange.
	serviceAddress = "203.0.113.1"
	serviceRange   = "203.0.113.0/24"
)

// containerdConfig is for the file of version 4. What containerd keeps is in the folders of Debian,
// which are the node's own. restrict_oom_score_adj is for machines that lack CAP_SYS_RESOURCE.
// By default NRI closes a plugin, which ends it, that has not answered within 2 s: when thirty pods
// start at once on two processors, it takes longer.
const containerdConfig = `version = 4
imports = []

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = %[1]q

[plugins.'io.containerd.cri.v1.runtime']
disable_apparmor = true
restrict_oom_score_adj = true
enable_cdi = true
cdi_spec_dirs = [%[2]q]

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = %[3]q

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni", "/opt/cni/bin"]
conf_dir = %[4]q
use_internal_loopback = true

[plugins.'io.containerd.nri.v1.nri']
plugin_registration_timeout = "1m"
plugin_request_timeout = "1m"

[plugins.'io.containerd.grpc.v1.cri']
stream_server_address = %[5]q
`

// writeContainerd writes the settings of containerd and of the pods' network, and the image.
func (n *node) writeContainerd() error {
	runc, err := findRunc()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(n.path("cni"), 0o755); err != nil {
		return fmt.Errorf("make a folder of the cluster: %w", err)
	}
	for name, content := range map[string]string{
		"containerd.toml": fmt.Sprintf(containerdConfig, WorkloadImage, n.path("cdi"), runc, n.path("cni"), Address),
		"cni/pods.conflist": `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
			{"type": "bridge", "bridge": "pods0", "isGateway": true,
			"ipam": {"type": "host-local", "ranges": [[{"subnet": "` + podSubnet + `"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`,
	} {
		if err := os.WriteFile(n.path(name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("write a file of the cluster: %w", err)
		}
	}
	return image.Write(n.path("workload.tar"), image.Config{
		Name: WorkloadImage, Program: n.Workload,
		Aliases: []string{"sleep", "fail", "burn", "send", "stubborn", "told", "env"},
	})
}

// findRunc finds runc, which an administrator's path alone may have.
func findRunc() (string, error) {
	for _, name := range []string{"runc", "/usr/sbin/runc", "/sbin/runc"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("there is no runc: install the Debian packages runc and containernetworking-plugins (as root: " +
		"make deps)")
}

// containerd is the container runtime. It is ready when it has the image.
func (n *node) containerd() *component {
	return &component{
		name: "cri",
		args: []string{filepath.Join(n.Containerd, "containerd"), "--config=" + n.path("containerd.toml")},
		env:  []string{"PATH=" + n.Containerd + ":/usr/sbin:/usr/bin:/sbin:/bin"},
		ready: func(ctx context.Context) error {
			if err := connects(ContainerdSocket)(ctx); err != nil {
				return err
			}
			return n.importWorkload(ctx)
		},
	}
}

func (n *node) importWorkload(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, filepath.Join(n.Containerd, "ctr"),
		"--address="+ContainerdSocket, "--namespace="+ContainerdNamespace, "images", "import", n.path("workload.tar"))
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import the image: %w: %s", err, output)
	}
	return nil
}

// enterReal makes the namespaces fit for containers: a sysfs of this network namespace, cgroups,
// and the API server under the address that pods are told.
func (n *node) enterReal(ctx context.Context) error {
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := mountCgroups(); err != nil {
		return err
	}
	return ip(ctx, strings.Fields("addr add "+serviceAddress+"/32 dev lo")...)
}
