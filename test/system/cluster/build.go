package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// Kubernetes is the version of Kubernetes. kube/go.mod requires the same version.
const Kubernetes = "v1.37.0"

const (
	thisPackage  = "github.com/dra-exporter/dra-exporter/test/system/cluster"
	versionStamp = "k8s.io/component-base/version"
)

// Build builds Kubernetes and etcd as one program, unless the user's cache already has it, and
// returns its path. The first build of a version takes minutes; Build writes its progress to log.
// The working directory must be in this module or in a module that requires it.
func Build(ctx context.Context, log io.Writer) (string, error) {
	source, err := goOutput(ctx, "list", "-f", "{{.Dir}}", thisPackage)
	if err != nil {
		return "", err
	}
	source = filepath.Join(source, "kube")
	program, err := cached(ctx, source)
	if err != nil {
		return "", err
	}
	return program, buildOnce(program, log, "Kubernetes "+Kubernetes, func(output string) error {
		return buildKube(ctx, source, "readonly", output, Kubernetes, log)
	})
}

// buildOnce calls build to make the program or folder at path, unless path exists.
func buildOnce(path string, log io.Writer, what string, build func(output string) error) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the cache of programs: %w", err)
	}
	unlock, err := lock(path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	say(log, "building %s once, into %s; this takes some minutes", what, path)
	begin := time.Now()
	if err := build(path + ".new"); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("put %s into its place: %w", what, err)
	}
	say(log, "built %s in %.0f s", what, time.Since(begin).Seconds())
	return nil
}

// cached returns the path of the program in the cache. The name of its folder is a hash of
// everything the build depends on: the sources, the required modules, the version and the compiler.
func cached(ctx context.Context, source string) (string, error) {
	var key bytes.Buffer
	files, err := filepath.Glob(filepath.Join(source, "*.go"))
	if err != nil {
		return "", fmt.Errorf("list the sources of the program: %w", err)
	}
	for _, file := range append(files, filepath.Join(source, "go.mod"), filepath.Join(source, "go.sum")) {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("read the sources of the program: %w", err)
		}
		fmt.Fprintf(&key, "%s %d\n%s", filepath.Base(file), len(content), content)
	}
	compiler, err := goOutput(ctx, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", err
	}
	fmt.Fprintln(&key, Kubernetes, compiler)
	folder, err := cacheFolder(key.Bytes())
	return filepath.Join(folder, "kube"), err
}

// lock takes an exclusive lock on a file and waits until it is free. The kernel releases the lock
// when this process ends.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the cache: %w", err)
	}
	if err := flock(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// buildKube builds a program of Kubernetes and sets the version that it reports. mod is the value
// of the -mod flag of go build.
func buildKube(ctx context.Context, source, mod, output, version string, log io.Writer) error {
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	ldflags := fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s",
		versionStamp, version, major, minor)
	cmd := goCommand(ctx, "build", "-C", source, "-mod="+mod, "-v", "-trimpath", "-ldflags="+ldflags, "-o", output, ".")
	cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	return follow(cmd, "Kubernetes", log)
}

// follow runs a build. What it says, such as the packages that it compiles, goes to log.
func follow(cmd *exec.Cmd, what string, log io.Writer) error {
	var said bytes.Buffer
	cmd.Stderr = io.MultiWriter(log, &said)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w: %s", what, err, said.Bytes()[max(0, said.Len()-1000):])
	}
	return nil
}

// say writes a line to log and ignores errors: nobody may be reading it.
func say(log io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(log, "cluster: "+format+"\n", args...)
}

// buildOurs builds two programs into the cache: the one that runs process 1 and the drivers, and
// the one in the workload image. It builds them in the module of this package, because the caller's
// module may lack their dependencies.
func buildOurs(ctx context.Context) (self, workload string, err error) {
	source, err := goOutput(ctx, "list", "-f", "{{.Dir}}", thisPackage)
	if err != nil {
		return "", "", err
	}
	folder, err := cacheFolder([]byte(source))
	if err != nil {
		return "", "", err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", "", fmt.Errorf("make the cache of programs: %w", err)
	}
	self, workload = filepath.Join(folder, "cluster"), filepath.Join(folder, "workload")
	unlock, err := lock(self + ".lock")
	if err != nil {
		return "", "", err
	}
	defer unlock()
	if _, err := goOutput(ctx, "build", "-C", source, "-o", self, "./cmd/cluster"); err != nil {
		return "", "", err
	}
	cmd := goCommand(ctx, "build", "-C", source, "-trimpath", "-ldflags=-s -w", "-o", workload, "./cmd/workload")
	cmd.Env = append(cmd.Env, "CGO_ENABLED=0") // The image contains no C library.
	_, err = output(cmd)
	return self, workload, err
}

// cacheFolder returns the folder in the user's cache for a key.
func cacheFolder(key []byte) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache: %w", err)
	}
	sum := sha256.Sum256(key)
	return filepath.Join(cache, "dra-exporter", "cluster", hex.EncodeToString(sum[:8])), nil
}

func goOutput(ctx context.Context, args ...string) (string, error) {
	return output(goCommand(ctx, args...))
}

// output runs a command and returns its standard output.
func output(cmd *exec.Cmd) (string, error) {
	said, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return "", fmt.Errorf("run %s: %w", filepath.Base(cmd.Path), err)
	}
	return strings.TrimSpace(string(said)), nil
}

// goCommand returns a go command that ignores the caller's GOFLAGS and workspace.
func goCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false")
	return cmd
}

// kubeletMain is the source of the kubelet program for a version other than [Kubernetes].
const kubeletMain = `package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kubelet/app"
)

// The first argument is "kubelet", as for the program that is all of Kubernetes.
func main() {
	os.Args = append(os.Args[:1], os.Args[2:]...)
	os.Exit(cli.Run(app.NewKubeletCommand(context.Background())))
}
`

// buildKubelet builds a kubelet of a version of Kubernetes, such as v1.36.3, unless the user's
// cache has it, and returns its path. It builds the kubelet in a module derived from the go.mod of
// that version. The go.sum of that version verifies the dependencies.
func buildKubelet(ctx context.Context, version string, log io.Writer) (string, error) {
	compiler, err := goOutput(ctx, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", err
	}
	folder, err := cacheFolder([]byte("kubelet " + version + "\n" + compiler + "\n" + kubeletMain))
	if err != nil {
		return "", err
	}
	program := filepath.Join(folder, "kubelet")
	return program, buildOnce(program, log, "kubelet "+version, func(output string) error {
		source, err := kubeletModule(ctx, version)
		if err != nil {
			return err
		}
		defer os.RemoveAll(source) //nolint:errcheck // A folder that remains does no harm.
		return buildKube(ctx, source, "mod", output, version, log)
	})
}

// kubeletModule creates the module in a temporary folder and returns the folder. In the go.mod of
// Kubernetes, its libraries are local folders without a version.
func kubeletModule(ctx context.Context, version string) (string, error) {
	major, rest, ok := strings.Cut(version, ".")
	if !ok || major != "v1" {
		return "", fmt.Errorf("build a kubelet: %q is no version of Kubernetes, such as v1.36.3", version)
	}
	said, err := goOutput(ctx, "mod", "download", "-json", kubernetesModule+"@"+version)
	if err != nil {
		return "", fmt.Errorf("find kubelet %s: %w", version, err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal([]byte(said), &module); err != nil {
		return "", fmt.Errorf("find kubelet %s: %w", version, err)
	}
	folder, err := os.MkdirTemp("", "kubelet-")
	if err != nil {
		return "", fmt.Errorf("make the module of the kubelet: %w", err)
	}
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		content := []byte(kubeletMain)
		if name != "main.go" {
			if content, err = os.ReadFile(filepath.Join(module.Dir, name)); err != nil {
				return "", fmt.Errorf("read the module of Kubernetes: %w", err)
			}
		}
		if name == "go.mod" {
			content = publishedModule(content, "v0."+rest, version)
		}
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return "", fmt.Errorf("make the module of the kubelet: %w", err)
		}
	}
	return folder, nil
}

const kubernetesModule = "k8s.io/kubernetes"

// publishedModule changes the go.mod of Kubernetes into one that requires Kubernetes and the
// libraries that were published with it.
func publishedModule(own []byte, libraries, version string) []byte {
	for pattern, replacement := range map[string]string{
		`(?m)^module .*$`:                     "module kubelet",
		`(?m)(k8s\.io/[a-z-]+) v0\.0\.0$`:     "$1 " + libraries,
		`=> \./staging/src/(k8s\.io/[a-z-]+)`: "=> $1 " + libraries,
	} {
		own = regexp.MustCompile(pattern).ReplaceAll(own, []byte(replacement))
	}
	return append(own, "\nrequire "+kubernetesModule+" "+version+"\n"...)
}

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
