package live

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

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
