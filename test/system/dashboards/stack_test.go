package dashboards

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestStack runs `make demo-stack` until the console shows records about the demo, then presses
// Ctrl-C: no process is left, and no port is open.
func TestStack(t *testing.T) {
	t.Parallel()
	exporter, prometheus := live.FreeAddress(t), live.FreeAddress(t)
	cmd := exec.Command("make", "-C", "../../..", "demo-stack", "PROMETHEUS="+program(t, "PROMETHEUS"))
	cmd.Env = append(os.Environ(), "EXPORTER="+exporter, "LISTEN="+prometheus, "MAKEFLAGS=", "TMPDIR="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	said := must.Get(os.Create(filepath.Join(t.TempDir(), "said")))(t)
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	must.Do(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	all := -cmd.Process.Pid // the group of its processes
	t.Cleanup(func() { _ = syscall.Kill(all, syscall.SIGKILL) })

	fleet := "http://" + prometheus + "/consoles/fleet.html"
	live.Await(t, 3*time.Minute, "it says where to look", func() error {
		text, err := os.ReadFile(said.Name())
		if err == nil && (!bytes.Contains(text, []byte(fleet)) || !bytes.Contains(text, []byte("top --url="+exporter))) {
			err = fmt.Errorf("it says\n%s", text)
		}
		return err
	})
	live.Await(t, time.Minute, "the console shows the fleet", func() error {
		page, err := body(fleet)
		if err == nil && !strings.Contains(page, "<td>active</td>") {
			err = fmt.Errorf("the page is\n%s", page)
		}
		return err
	})
	live.Await(t, time.Minute, "claims have distributions", func() error {
		got, err := live.At("http://"+prometheus).Query(t.Context(),
			"histogram_count(dra_claim_utilization_distribution_ratio)", time.Now())
		if err == nil && len(got) == 0 {
			err = errors.New("no native histogram was scraped")
		}
		return err
	})
	live.Await(t, time.Minute, "the node has a page", func() error {
		return live.Get(http.DefaultClient, "http://"+exporter)
	})
	if err := syscall.Kill(all, syscall.SIGINT); err != nil { // as a terminal does
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("Ctrl-C does not end it")
	}
	live.Await(t, time.Minute, "all processes end", func() error {
		if err := syscall.Kill(all, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("a process is left: %w", err)
		}
		return nil
	})
	for _, address := range []string{exporter, prometheus} {
		if c, err := new(net.Dialer).DialContext(t.Context(), "tcp", address); err == nil {
			_ = c.Close()
			t.Errorf("something listens on %s still", address)
		}
	}
}

// body returns the body of a page.
func body(address string) (string, error) {
	response, err := http.Get(address)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return string(text), err
}
