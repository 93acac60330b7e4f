//go:build cgo

package nvml

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A new driver comes with a new library at the old path: that one is used, in the same process, and
// the old one is gone from it.
func TestNewLibrary(t *testing.T) {
	c := newClock()
	machine.Reset(2)
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	install := func(library string) {
		content := must.Get(os.ReadFile(library))(t)
		must.Do(t, os.WriteFile(path+".new", content, 0o600))
		must.Do(t, os.Rename(path+".new", path))
	}
	install(machine.Library)
	s := newSource(t, c, func(config *Config) { config.Library = path })
	for range 3 {
		nvidiatest.Sample(t, s)
		c.Advance(1)
	}
	must.That(t, mapped(t, path), "the library is not mapped: the test shows nothing")
	machine.Users, machine.Init = 0, int64(nvml.ERROR_LIB_RM_VERSION_MISMATCH)
	c.Advance(1)
	if _, err := s.Sample(t.Context()); err == nil {
		t.Fatal("no error while the library does not fit the driver")
	}
	c.Advance(retryMost.Seconds())
	if _, err := s.Sample(t.Context()); err == nil || !strings.Contains(err.Error(), "nvmlInit_v2") {
		t.Fatalf("while the library does not fit the driver: error %v", err)
	}
	expect.That(t, !mapped(t, path), "the library that does not fit the driver is mapped still")
	install(machine.NewLibrary)
	c.Advance(retryMost.Seconds())
	for _, got := range nvidiatest.Sample(t, s) {
		expect.That(t, got.Hardware.DriverVersion == nvmltest.NewVersion && len(got.Readings) != 0,
			"%s: driver %s, %d readings", got.Hardware.UUID, got.Hardware.DriverVersion, len(got.Readings))
	}
}

// mapped reports whether a library is in this process.
func mapped(t *testing.T, path string) bool {
	maps := must.Get(os.ReadFile("/proc/self/maps"))(t)
	return strings.Contains(string(maps), path)
}

// All functions that this package calls are forwarded.
func TestForwarded(t *testing.T) {
	forwarded := must.Get(os.ReadFile("functions.h"))(t)
	called := must.Get(os.ReadFile(filepath.Join("nvmltest", "fake", "functions.h")))(t)
	functions := func(text []byte) (out []string) {
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(line,
				"FUNCTION("); ok && !strings.HasPrefix(name, "nvmlInit_v2)") && !strings.HasPrefix(name, "nvmlShutdown)") {
				out = append(out, name)
			}
		}
		return out
	}
	if diff := cmp.Diff(functions(called), functions(forwarded)); diff != "" {
		t.Errorf("functions that are called and those that are forwarded (-called +forwarded):\n%s", diff)
	}
}

// machine is the fake. A process can have only one. Each test resets it.
var machine *nvmltest.Machine

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "nvml")
	if err == nil {
		machine, err = nvmltest.New(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(dir)
		os.Exit(status)
	}))
}

func newClock() *nvidiatest.Clock { return nvidiatest.NewClock(machine) }
