// Package live runs programs for system tests, and queries a real Prometheus.
package live

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// startTimeout is how long a program may take to start on a slow machine.
const startTimeout = 3 * time.Minute

// Start starts a program and waits until it answers a GET of ready with status 200. The test fails
// at once if the program ends before. When the test ends, the program is interrupted and awaited.
// Its output is logged if the test fails.
func Start(t testing.TB, cmd *exec.Cmd, client *http.Client, ready string) {
	log := must.Get(os.Create(filepath.Join(t.TempDir(), "log")))(t)
	cmd.Stdout, cmd.Stderr = log, log
	must.Do(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the status is in ProcessState
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-ended
		_ = log.Close()
		if t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Logf("%s said:\n%s", filepath.Base(cmd.Path), said)
		}
	})
	Await(t, startTimeout, ready+" answers", func() error {
		err := Get(client, ready)
		select {
		case <-ended:
			must.That(t, false, "%s ended before %s answered: %v", filepath.Base(cmd.Path), ready, cmd.ProcessState)
		default:
		}
		return err
	})
}

// Answer is the answer to a request.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	Took   time.Duration // until its end
}

// Ask sends a GET with headers, which are names and values in turns, and reads the answer to its
// end.
func Ask(ctx context.Context, client *http.Client, address string, headers ...string) (Answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return Answer{}, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			request.Host = headers[i+1]
		}
	}
	begun := time.Now()
	response, err := client.Do(request)
	if err != nil {
		return Answer{}, err
	}
	body, err := io.ReadAll(response.Body)
	err = errors.Join(err, response.Body.Close())
	return Answer{response.StatusCode, response.Header, body, time.Since(begun)}, err
}

// Basic returns the value of the header Authorization for a user with a password.
func Basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// Get returns an error unless a GET of an address is answered with status 200.
func Get(client *http.Client, address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	a, err := Ask(ctx, client, address)
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("%s: status %d", address, a.Status)
	}
	return err
}

// JSON gets an address and decodes the answer.
func JSON(ctx context.Context, client *http.Client, address string, into any) error {
	a, err := Ask(ctx, client, address)
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("status %d: %.300s", a.Status, a.Body)
	}
	if err == nil {
		err = json.Unmarshal(a.Body, into)
	}
	if err != nil {
		return fmt.Errorf("get %s: %w", address, err)
	}
	return nil
}

// Await retries until there is no error. It ends the test if that takes too long.
func Await(t testing.TB, atMost time.Duration, what string, try func() error) {
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(atMost); ; <-again.C {
		err := try()
		if err == nil {
			return
		}
		must.That(t, !time.Now().After(end), "not within %v: %s: %v", atMost, what, err)
	}
}

// FreeAddress is [Reserve] until the test ends.
func FreeAddress(t testing.TB) string {
	address, release, err := Reserve()
	must.Do(t, err)
	t.Cleanup(release)
	return address
}

// Reserve returns a local address that only the program for which it is meant uses until release is
// called: the port is bound, and not listened on. The kernel then gives it to no other socket, and
// lets a program listen on it that sets SO_REUSEADDR, as servers do.
func Reserve() (address string, release func(), err error) {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("reserve a port: %w", err)
	}
	release = func() { _ = syscall.Close(socket) }
	err = syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	if err == nil {
		err = syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	var bound syscall.Sockaddr
	if err == nil {
		bound, err = syscall.Getsockname(socket)
	}
	if err != nil {
		release()
		return "", nil, fmt.Errorf("reserve a port: %w", err)
	}
	return fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port), release, nil
}

// Certificate writes cert.pem and key.pem, self-signed for a server at 127.0.0.1 and with some
// names, into a folder, and returns a pool that trusts it.
func Certificate(t testing.TB, folder string, names ...string) *x509.CertPool {
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: names, IsCA: true, BasicConstraintsValid: true,
	}
	der := must.Get(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	private := must.Get(x509.MarshalPKCS8PrivateKey(key))(t)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, content := range map[string][]byte{
		"cert.pem": certificate,
		"key.pem":  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	} {
		must.Do(t, os.WriteFile(filepath.Join(folder, name), content, 0o600))
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	return pool
}

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

// Brief returns a short end of an exporter's log for the output of a test: the last warnings and
// errors, truncated, and the name of a file with the complete log.
func Brief(log string) string {
	const most, width = 12, 200
	var told []string
	for line := range strings.Lines(log) {
		if strings.Contains(line, " level=INFO ") || strings.Contains(line, " level=DEBUG ") {
			continue
		}
		line = strings.TrimSuffix(line, "\n")
		if len(line) > width {
			line = line[:width] + "…"
		}
		told = append(told, line)
	}
	all := "which could not be written"
	if f, err := os.CreateTemp("", "exporter-*.log"); err == nil {
		_, err = f.WriteString(log)
		if f.Close() == nil && err == nil {
			all = f.Name()
		}
	}
	shown := told[max(0, len(told)-most):]
	return fmt.Sprintf("%d of %d warnings and errors; all of the log: %s\n%s", len(shown), len(told), all,
		strings.Join(shown, "\n"))
}
