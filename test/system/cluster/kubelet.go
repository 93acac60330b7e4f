package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

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
