package live

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// StartDemo builds the demo of the tree with the given root, runs it at an address until the test
// ends, and waits until it serves. Its job hangs after 40 s, and its counters are 0 for 2 s.
func StartDemo(t testing.TB, root, address string) {
	demo := filepath.Join(t.TempDir(), "demo")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", demo, "./test/demo")
	build.Dir = root
	said, err := build.CombinedOutput()
	must.That(t, err == nil, "build the demo: %v\n%s", err, said)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), demo, "--listen="+address, "--hang=40s")
	cmd.Env = append(os.Environ(), "DRA_EXPORTER_COUNTER_ZERO_HOLD=2s")
	Start(t, cmd, http.DefaultClient, "http://"+address+"/readyz")
}
