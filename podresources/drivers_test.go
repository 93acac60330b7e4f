package podresources

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A driver counts as gone when no process has answered on its sockets for a minute, and as back
// with the first answer. The state of a driver without a folder is unknown.
func TestDrivers(t *testing.T) {
	root, err := os.MkdirTemp("", "drivers") //nolint:usetesting // the path of t.TempDir is too long for a socket
	must.Do(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	now := time.Unix(1_700_000_000, 0)
	d := NewDrivers(root, func() time.Time { return now })
	serve := func(driver, name string) net.Listener {
		folder := filepath.Join(root, "plugins", driver)
		must.Do(t, os.MkdirAll(folder, 0o755))
		l := must.Get(new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(folder, name)))(t)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	serve("lives", "dra.sock")
	killed := serve("killed", "dra.sock")
	serve("upgraded", "dra.0123.sock")
	_ = serve("upgraded", "dra.sock").Close()
	must.Do(t, os.MkdirAll(filepath.Join(root, "plugins", "uninstalled"), 0o755))
	drivers := map[string]bool{
		"lives": true, "killed": true, "upgraded": true, "uninstalled": true, "elsewhere": true,
		"..": true, "a/b": true,
	}
	look := func(after time.Duration, want ...string) {
		now = now.Add(after)
		d.Gone(drivers)
		d.look(t.Context())
		got := d.Gone(drivers)
		for _, driver := range want {
			expect.That(t, got[driver], "%s is not gone", driver)
		}
		expect.That(t, len(got) == len(want), "gone are %v, want %v", got, want)
	}
	look(0)
	_ = killed.Close()
	look(time.Second)
	look(driverAway-time.Second, "uninstalled")
	look(time.Second, "uninstalled", "killed")
	_ = os.Remove(filepath.Join(root, "plugins", "killed", "dra.sock"))
	look(time.Second, "uninstalled", "killed")
	serve("killed", "dra.sock")
	look(time.Second, "uninstalled")
	must.Do(t, os.RemoveAll(filepath.Join(root, "plugins")))
	look(time.Hour)
}

// If a check hangs, that is reported, and delays the end of the watch only briefly.
func TestDriversHang(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		d := NewDrivers(root, func() time.Time { <-release; return time.Time{} })
		var reported []error
		d.Report = func(_ time.Duration, err error) { reported = append(reported, err) }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		d.Watch(ctx)
		took := time.Since(begun)
		expect.That(t, took <= time.Minute+driver.ReadWait, "it ended after %v", took)
		expect.That(t, len(reported) == 1 && driver.ReasonOf(reported[0]) == driver.ReasonHung,
			"reported %v, want once that it hangs", reported)
	})
}
