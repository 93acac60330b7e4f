//go:build cgo

package nvml

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
)

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
