package live

import (
	"fmt"
	"net/http"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestStartEnded: if a program ends before it is ready, the test fails at once, with its status and
// output.
func TestStartEnded(t *testing.T) {
	started := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Start(started, exec.CommandContext(t.Context(), "sh", "-c", "echo no memory; exit 3"), http.DefaultClient,
			"http://"+FreeAddress(t)+"/-/ready")
	}()
	<-done
	for _, cleanup := range slices.Backward(started.cleanups) {
		cleanup()
	}
	said := strings.Join(started.said, "\n")
	for _, want := range []string{"sh ended before http://127.0.0.1:", "exit status 3", "no memory"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is missing in\n%s", want, said)
		}
	}
}

// failing is a test that may fail.
type failing struct {
	testing.TB
	failed   bool
	said     []string
	cleanups []func()
}

func (f *failing) Logf(format string, args ...any) {
	f.said = append(f.said, fmt.Sprintf(format, args...))
}
func (f *failing) Cleanup(cleanup func()) { f.cleanups = append(f.cleanups, cleanup) }
func (f *failing) Failed() bool           { return f.failed }

func (f *failing) Fatalf(format string, args ...any) {
	f.Logf(format, args...)
	f.failed = true
	runtime.Goexit()
}
