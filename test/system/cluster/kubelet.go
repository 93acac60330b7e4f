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

// kubeletMain is the program of a kubelet of another version than the rest of the cluster.
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

// buildKubelet builds a kubelet of a version of Kubernetes, such as v1.36.3, into the user's cache,
// where it is not there yet, and returns its path. The module that it is built in is made of
// Kubernetes's own, and checked against Kubernetes's go.sum alone.
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
		defer os.RemoveAll(source) //nolint:errcheck // what is left harms nobody
		return buildKube(ctx, source, "mod", output, version, log)
	})
}

// kubeletModule makes the module in a temporary folder, which it returns. In Kubernetes's own, the
// libraries of Kubernetes are folders beside it and have no version.
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

// publishedModule makes a module that requires Kubernetes of Kubernetes's own go.mod: its libraries
// are those that were published with it.
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
