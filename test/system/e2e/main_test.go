// Package e2e starts the real program with a test kubelet on a unix socket, and queries it over
// HTTP.
//
// It needs Linux and root. $DRA_EXPORTER is the path of the program, which is built if it is not
// set, and $PROMTOOL that of promtool.
package e2e

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// programPath is the environment variable that names the program.
const programPath = "DRA_EXPORTER"

func TestMain(m *testing.M) {
	flag.Parse()
	// Most tests wait for the program's ticks and backoffs, not for the processor.
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "e2e")
	if err == nil {
		err = errors.Join(build(dir), changeClocks(dir))
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

// build builds the program in a folder unless the environment names one, and sets its path in the
// environment.
func build(dir string) error {
	if os.Getenv(programPath) != "" {
		return nil
	}
	path := filepath.Join(dir, "dra-exporter")
	cmd := exec.Command("go", "build", "-C", filepath.Join("..", "..", ".."), "-buildvcs=false", "-o", path,
		"./exporter/cmd/dra-exporter")
	if said, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("build the program: %w", err), errors.New(string(said)))
	}
	if err := os.Setenv(programPath, path); err != nil {
		return fmt.Errorf("set $%s: %w", programPath, err)
	}
	return nil
}
