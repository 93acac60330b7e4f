package dashboards

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// TestMain lets all tests run at the same time, also on few cores: most of them wait for programs.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
