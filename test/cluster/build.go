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

// Kubernetes is the version of Kubernetes, which kube/go.mod pins too.
const Kubernetes = "v1.37.0"

const (
	module       = "github.com/dra-exporter/dra-exporter/test/cluster"
	versionStamp = "k8s.io/component-base/version"
)

// Build builds Kubernetes and etcd as one program into the user's cache, where it is not there yet, and returns its path. That takes
// some minutes once per version; log says how far it is. The go command runs in the working folder, whose module must be this one or
// require it.
func Build(ctx context.Context, log io.Writer) (string, error) {
	source, err := goOutput(ctx, "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return "", err
	}
	source = filepath.Join(source, "kube")
	program, err := cached(ctx, source)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		return "", fmt.Errorf("make the cache of programs: %w", err)
	}
	unlock, err := lock(program + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	say(log, "building Kubernetes %s once, into %s; this takes some minutes", Kubernetes, program)
	begin := time.Now()
	if err := buildKube(ctx, source, program+".new", log); err != nil {
		return "", err
	}
	if err := os.Rename(program+".new", program); err != nil {
		return "", fmt.Errorf("put the program of Kubernetes into its place: %w", err)
	}
	say(log, "built Kubernetes in %.0f s", time.Since(begin).Seconds())
	return program, nil
}

// cached returns the path of the program, whose folder is named after what decides its bytes: the sources, what they require, the
// version and the compiler.
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

// lock waits for the lock that a file stands for, which the kernel releases at the latest when this process ends.
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

func buildKube(ctx context.Context, source, output string, log io.Writer) error {
	major, minor, _ := strings.Cut(strings.TrimPrefix(Kubernetes, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	ldflags := fmt.Sprintf("-s -w -X %[1]s.gitVersion=%[2]s -X %[1]s.gitMajor=%[3]s -X %[1]s.gitMinor=%[4]s", versionStamp, Kubernetes, major, minor)
	cmd := goCommand(ctx, "build", "-C", source, "-v", "-trimpath", "-ldflags="+ldflags, "-o", output, ".")
	cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("build Kubernetes: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build Kubernetes: %w", err)
	}
	last := progress(stderr, log)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("build Kubernetes: %w: %s", err, last)
	}
	return nil
}

// progress says every 20 s or so how many packages go has compiled, and returns the last lines of its output.
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

// say writes a line for people, who may have gone.
func say(log io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(log, "cluster: "+format+"\n", args...)
}

// buildNode builds the program of process 1 and of the driver, where the one in the cache is not of these sources, and returns its path.
func buildNode(ctx context.Context) (string, error) {
	source, err := goOutput(ctx, "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return "", err
	}
	folder, err := cacheFolder([]byte(source))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("make the cache of programs: %w", err)
	}
	program := filepath.Join(folder, "cluster")
	unlock, err := lock(program + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	_, err = goOutput(ctx, "build", "-o", program, module+"/cmd/cluster")
	return program, err
}

// cacheFolder returns the folder of the user's cache for a program that a key decides.
func cacheFolder(key []byte) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache: %w", err)
	}
	sum := sha256.Sum256(key)
	return filepath.Join(cache, "dra-exporter", "cluster", hex.EncodeToString(sum[:8])), nil
}

func goOutput(ctx context.Context, args ...string) (string, error) {
	output, err := goCommand(ctx, args...).Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return "", fmt.Errorf("go %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(output)), nil
}

// goCommand returns a go command that builds for this machine, whatever the caller's flags.
func goCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false")
	return cmd
}
