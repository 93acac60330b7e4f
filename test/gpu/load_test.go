package gpu

import (
	"bufio"
	"context"
	"embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

//go:embed load
var sources embed.FS

// buildLoad compiles the program load, and returns its path. A fake libcuda.so.1 is beside it in
// the folder fake.
func buildLoad(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must.Do(t, os.CopyFS(dir, sources))
	path := filepath.Join(dir, "load", "burden")
	for _, args := range [][]string{
		{"-O1", "-Wall", "-Werror", "-o", path, filepath.Join(dir, "load", "load.c"), "-ldl"},
		{
			"-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", filepath.Join(dir, "load", "fake", "libcuda.so.1"),
			filepath.Join(dir, "load", "fake", "libcuda.c"),
		},
	} {
		out, err := exec.CommandContext(t.Context(), "cc", args...).CombinedOutput()
		must.That(t, err == nil, "compile the load: %v\n%s", err, out)
	}
	return path
}

// fakeCUDA returns the environment in which the load uses the fake library, which writes its calls
// to a file.
func fakeCUDA(load, calls string) []string {
	return []string{"LD_LIBRARY_PATH=" + filepath.Join(filepath.Dir(load), "fake"), "FAKE_CUDA_LOG=" + calls}
}

// load is a process that loads a GPU.
type load struct {
	pid    int
	cmd    *exec.Cmd
	input  io.Closer
	output *bufio.Reader
}

// startLoad starts the program at a path on a device, and returns when the load has started.
func startLoad(ctx context.Context, path, device string, b burden, environment ...string) (*load, error) {
	cmd := exec.CommandContext(ctx, path, fmt.Sprint(b.Bytes), fmt.Sprint(b.Share), fmt.Sprint(b.Copy))
	cmd.Env = append(append(os.Environ(), "CUDA_VISIBLE_DEVICES="+device), environment...)
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start the load: %w", err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the load: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the load: %w", err)
	}
	l := &load{pid: cmd.Process.Pid, cmd: cmd, input: input, output: bufio.NewReader(output)}
	if line, err := l.output.ReadString('\n'); err != nil || line != "ready\n" {
		l.kill()
		return nil, fmt.Errorf("start the load: output %q: %w", line, err)
	}
	return l, nil
}

// stop ends the process, and returns how many bytes per second it copied.
func (l *load) stop() (float64, error) {
	if err := l.input.Close(); err != nil {
		return 0, fmt.Errorf("end the load: %w", err)
	}
	line, err := l.output.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("end the load: output %q: %w", line, err)
	}
	var rounds, copied uint64
	var took float64
	if _, err := fmt.Sscanf(line, "%d rounds, %d bytes copied in %f s", &rounds, &copied, &took); err != nil {
		return 0, fmt.Errorf("end the load: output %q: %w", line, err)
	}
	if err := l.cmd.Wait(); err != nil {
		return 0, fmt.Errorf("end the load: %w", err)
	}
	return float64(copied) / took, nil
}

// kill kills the process if it is still running.
func (l *load) kill() {
	if l.cmd.ProcessState == nil {
		_ = l.cmd.Process.Kill()
		_ = l.cmd.Wait()
	}
}

// The load on the fake library: its calls in order, and the time of its kernels.
func TestLoad(t *testing.T) {
	path, calls := buildLoad(t), filepath.Join(t.TempDir(), "calls")
	l := must.Get(startLoad(t.Context(), path, "GPU-a", burden{Bytes: 1 << 20, Share: 0.4, Copy: 1 << 16},
		fakeCUDA(path, calls)...))(t)
	defer l.kill()
	time.Sleep(500 * time.Millisecond)
	copied := must.Get(l.stop())(t)
	text := must.Get(os.ReadFile(calls))(t)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	round := []string{"cuLaunchKernel 528 x 256, 20000000 ns 0", "cuCtxSynchronize 0", "cuMemcpyHtoD_v2 65536 0"}
	want := append([]string{
		"cuInit 0", "cuDeviceGet 0 of GPU-a 0", "cuDeviceGetAttribute 16 0", "cuDevicePrimaryCtxRetain 0",
		"cuCtxSetCurrent 0",
		"cuMemAlloc_v2 1048576 0", "cuMemsetD8_v2 0 1048576 0", "cuModuleLoadData 0", "cuModuleGetFunction spin 0",
	}, round...)
	expect.Equal(t, "first calls", want, lines[:min(len(want), len(lines))])
	rounds := (len(lines) - len(want) + len(round)) / len(round)
	for i := range rounds {
		begun := len(want) - len(round) + i*len(round)
		expect.Equal(t, fmt.Sprintf("calls of round %d", i), round, lines[begun:begun+len(round)])
	}
	// Periods are 50 ms in the mean, and at least 35 ms: 500 ms have at most a few more rounds than
	// requested.
	if perSecond := 20 * 65536.; rounds < 2 || copied > 1.5*perSecond {
		t.Errorf("%d rounds in 500 ms, and %v bytes per second copied, want %v", rounds, copied, perSecond)
	}
}

// If the load cannot use the GPU, it ends with an error.
func TestLoadFails(t *testing.T) {
	path, broken := buildLoad(t), t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(broken, "libcuda.so.1"), []byte("no library"), 0o600))
	calls := filepath.Join(t.TempDir(), "calls")
	for name, tc := range map[string]struct {
		burden      burden
		environment []string
	}{
		"a file that is not a library": {burden{Bytes: 1 << 20}, []string{"LD_LIBRARY_PATH=" + broken}},
		"more to copy than memory":     {burden{Bytes: 4, Copy: 5}, fakeCUDA(path, calls)},
		"more than all of the time":    {burden{Bytes: 4, Share: 1.1}, fakeCUDA(path, calls)},
		"memory that is not a number":  {burden{Bytes: 3}, fakeCUDA(path, calls)},
	} {
		if l, err := startLoad(t.Context(), path, "GPU-a", tc.burden, tc.environment...); err == nil {
			l.kill()
			t.Errorf("%s: no error", name)
		}
	}
}
