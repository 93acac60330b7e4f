package gpu

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// buildLoad compiles the program load, and returns its path.
func buildLoad(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "burden")
	out, err := exec.CommandContext(t.Context(), "cc", "-O1", "-Wall", "-Werror", "-o", path, "load/load.c", "-ldl").
		CombinedOutput()
	must.That(t, err == nil, "compile the load: %v\n%s", err, out)
	return path
}

// load is a process that loads a GPU.
type load struct {
	pid    int
	cmd    *exec.Cmd
	input  io.Closer
	output *bufio.Reader
}

// startLoad starts the program at a path on a device, and returns when the load has started.
func startLoad(ctx context.Context, path, device string, b burden) (*load, error) {
	cmd := exec.CommandContext(ctx, path, fmt.Sprint(b.Bytes), fmt.Sprint(b.Share), fmt.Sprint(b.Copy))
	cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES="+device)
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

// For what it can't do, the load ends with an error.
func TestLoadFails(t *testing.T) {
	path := buildLoad(t)
	for name, burden := range map[string]burden{
		"more to copy than memory":    {Bytes: 4, Copy: 5},
		"more than all of the time":   {Bytes: 4, Share: 1.1},
		"memory that is not a number": {Bytes: 3},
	} {
		if l, err := startLoad(t.Context(), path, "GPU-a", burden); err == nil {
			l.kill()
			t.Errorf("%s: no error", name)
		}
	}
}
