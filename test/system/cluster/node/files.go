package node

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/image"
)

// adminToken need not be secret: only the cluster's network namespace can reach the API server.
const adminToken = "admin"

// proxyName is the name by which the API server identifies itself to aggregated API servers.
const proxyName = "front-proxy"

// object is a part of a YAML document.
type object = map[string]any

// writeFiles writes the files that the components read. The components run in an empty folder,
// because the kubelet may delete *.* in its working directory: it does so when it removes a
// container for which the runtime reports no log path (removeContainerLog in
// pkg/kubelet/kuberuntime).
func (n *node) writeFiles() error {
	for _, folder := range []string{"log", "cdi", "pods", "kubelet", "certs", "empty", Manifests} {
		if err := os.MkdirAll(n.path(folder), 0o755); err != nil {
			return fmt.Errorf("make a folder of the cluster: %w", err)
		}
	}
	key, keyErr := keyutil.MakeEllipticPrivateKeyPEM()
	proxyKey, proxyCertificate, err := newProxyCertificate()
	if err := errors.Join(keyErr, err); err != nil {
		return fmt.Errorf("make keys of the cluster: %w", err)
	}
	files := map[string][]byte{
		"service-account.key": key,
		"front-proxy.key":     proxyKey,
		"front-proxy.crt":     proxyCertificate,
		"tokens.csv":          []byte(adminToken + ",admin,admin,system:masters\n"),
	}
	for name, content := range map[string]object{
		"kubeconfig":     kubeconfig(),
		"scheduler.yaml": n.schedulerConfig(),
		"kubelet.yaml":   n.kubeletConfig(),
	} {
		if files[name], err = yaml.Marshal(content); err != nil {
			return fmt.Errorf("encode %s: %w", name, err)
		}
	}
	for name, content := range files {
		if err := os.WriteFile(n.path(name), content, 0o600); err != nil {
			return fmt.Errorf("write a file of the cluster: %w", err)
		}
	}
	if n.Containerd != "" {
		return n.writeContainerd()
	}
	return nil
}

// newProxyCertificate returns a key and a self-signed certificate. With these the API server
// forwards requests and their users to aggregated API servers.
func newProxyCertificate() (key, certificate []byte, err error) {
	if key, err = keyutil.MakeEllipticPrivateKeyPEM(); err != nil {
		return nil, nil, err
	}
	private, err := keyutil.ParsePrivateKeyPEM(key)
	if err != nil {
		return nil, nil, err
	}
	signed, err := cert.NewSelfSignedCACert(cert.Config{CommonName: proxyName}, private.(crypto.Signer))
	if err != nil {
		return nil, nil, err
	}
	certificate, err = cert.EncodeCertificates(signed)
	return key, certificate, err
}

func kubeconfig() object {
	return object{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": "cluster",
		"clusters": []object{{
			"name":    "cluster",
			"cluster": object{"server": serverURL, "insecure-skip-tls-verify": true},
		}},
		"users":    []object{{"name": "admin", "user": object{"token": adminToken}}},
		"contexts": []object{{"name": "cluster", "context": object{"cluster": "cluster", "user": "admin"}}},
	}
}

// schedulerConfig raises the client's rate limits: with the default limits, scheduling 100 pods
// takes more than a minute.
func (n *node) schedulerConfig() object {
	return object{
		"apiVersion":       "kubescheduler.config.k8s.io/v1",
		"kind":             "KubeSchedulerConfiguration",
		"leaderElection":   object{"leaderElect": false},
		"clientConnection": object{"kubeconfig": n.path("kubeconfig"), "qps": 500, "burst": 1000},
	}
}

func (n *node) kubeletConfig() object {
	config := object{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + n.runtimeSocket(),
		"podLogsDir":               n.path("pods"),
		"staticPodPath":            n.path(Manifests),
		"fileCheckFrequency":       "1s",
		"address":                  Address,
		"authentication":           object{"anonymous": object{"enabled": true}, "webhook": object{"enabled": false}},
		"authorization":            object{"mode": "AlwaysAllow"},
		"cgroupDriver":             "cgroupfs",
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"makeIPTablesUtilChains":   false,
		"resolvConf":               "",
		"syncFrequency":            "1s",
		"evictionHard":             object{"memory.available": "1Mi"},
		"kubeAPIQPS":               500,
		"kubeAPIBurst":             1000,
		"maxPods":                  250,
	}
	if n.Containerd == "" {
		config["cgroupsPerQOS"], config["enforceNodeAllocatable"] = false, []string{}
	}
	if n.Bus != "" {
		config["shutdownGracePeriod"], config["shutdownGracePeriodCriticalPods"] = "30s", "5s"
	}
	gates := object{}
	for _, gate := range n.gates() {
		gates[gate] = true
	}
	if n.Kubelet != n.Program { // Gates that the scenarios need and that are on by default since 1.36.
		for _, gate := range []string{"ResourceHealthStatus", "DRAExtendedResource", "DRAConsumableCapacity"} {
			gates[gate] = true
		}
	}
	if n.Rootless {
		gates["KubeletInUserNamespace"] = true
	}
	config["featureGates"] = gates
	return config
}

// WorkloadImage is the name of the image of pods and sandboxes. Its program is cmd/workload. The
// short name workload:1 works in pods.
const WorkloadImage = "docker.io/library/workload:1"

const (
	// ContainerdSocket is the socket of containerd, in the node's file system.
	ContainerdSocket = "/run/containerd/containerd.sock"
	// ContainerdNamespace is the containerd namespace that the kubelet uses.
	ContainerdNamespace = "k8s.io"

	// The pods and the node have addresses that are reserved for documentation (RFC 5737).
	podSubnet = "198.51.100.0/24"
	// serviceAddress is the API server's address for pods. It is the first address of serviceRange.
	serviceAddress = "203.0.113.1"
	serviceRange   = "203.0.113.0/24"
)

// containerdConfig is the configuration, in version 4 of the format. containerd keeps its data in
// its default folders, which belong to the node's file system. restrict_oom_score_adj is needed on
// machines without CAP_SYS_RESOURCE. By default, NRI disconnects a plugin that has not answered
// within 2 s, and the plugin then ends. Two processors that start thirty pods at once need longer.
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

// writeContainerd writes the configuration of containerd, that of the pod network, and the image.
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

// findRunc finds runc, which may be in a folder that is only in an administrator's PATH.
func findRunc() (string, error) {
	for _, name := range []string{"runc", "/usr/sbin/runc", "/sbin/runc"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("there is no runc: install the Debian packages runc and containernetworking-plugins (as root: " +
		"make deps)")
}

// containerd returns the container runtime. It is ready when it has imported the image.
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

// enterReal prepares the namespaces for real containers: it mounts a sysfs of this network
// namespace and the cgroups, and adds the API server's address for pods.
func (n *node) enterReal(ctx context.Context) error {
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := mountCgroups(); err != nil {
		return err
	}
	return ip(ctx, strings.Fields("addr add "+serviceAddress+"/32 dev lo")...)
}
