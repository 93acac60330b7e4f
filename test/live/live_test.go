package live

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
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
		expect.That(t, strings.Contains(said, want), "%q is missing in\n%s", want, said)
	}
}

// A program can listen on a reserved address; a socket for which any port is good does not get it.
func TestReserve(t *testing.T) {
	address, release, err := Reserve()
	must.Do(t, err)
	t.Cleanup(release)
	other := must.Get(syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { _ = syscall.Close(other) })
	port := netip.MustParseAddrPort(address).Port()
	err = syscall.Bind(other, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: int(port)})
	expect.That(t, errors.Is(err, syscall.EADDRINUSE),
		"a socket that does not share its port is bound to the reserved one: %v", err)
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	_ = server.Listener.Close()
	if server.Listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", address); err != nil {
		t.Fatal(err)
	}
	server.Start()
	t.Cleanup(server.Close)
	if err := Get(server.Client(), server.URL); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("the server on the reserved address does not answer: %v", err)
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
