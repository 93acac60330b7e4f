//go:build cgo

package dcgm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver/dcgm/dcgmtest"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
)

// machine is the fake. A process can have only one. Each test resets it.
var machine *dcgmtest.Machine

// withoutLibrary is set in the environment of a process that is to have no fake.
const withoutLibrary = "DCGM_WITHOUT_LIBRARY"

func TestMain(m *testing.M) {
	dir := ""
	if os.Getenv(withoutLibrary) == "" {
		var err error
		if dir, err = load(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(dir)
		os.Exit(status)
	}))
}

// load makes the fake, and returns the folder in which it is.
func load() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "dcgm"); err != nil {
		return "", err
	}
	machine, err = dcgmtest.New(context.Background(), dir)
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, machine.Load()
}

// newClock returns a clock, and makes the machine one of so many GPUs at that time.
func newClock(gpus int) *nvidiatest.Clock {
	c := nvidiatest.NewClock(machine)
	machine.Reset(gpus, float64(c.Unix()))
	return c
}
