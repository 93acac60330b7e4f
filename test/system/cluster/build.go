package cluster

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
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

// follow runs a build and logs its progress.
func follow(cmd *exec.Cmd, what string, log io.Writer) error {
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("build %s: %w", what, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build %s: %w", what, err)
	}
	last := progress(stderr, log)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("build %s: %w: %s", what, err, last)
	}
	return nil
}

// progress logs about every 20 s how many packages go has compiled. It returns the last lines of
// the output.
func progress(output io.Reader, log io.Writer) string {
	const every, kept = 20 * time.Second, 20
	begin, next := time.Now(), every
	var tail []string
	packages := 0
	for lines := bufio.NewScanner(output); lines.Scan(); {
		packages++
		if tail = append(tail, lines.Text()); len(tail) > kept {
			tail = tail[1:]
		}
		if spent := time.Since(begin); spent > next {
			say(log, "%d packages in %.0f s", packages, spent.Seconds())
			next = spent + every
		}
	}
	return strings.Join(tail, "\n")
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
