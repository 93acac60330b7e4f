package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestPCIPaths checks that each device is read once as long as it is asked for, and is read again
// if it is asked for later.
func TestPCIPaths(t *testing.T) {
	root := t.TempDir()
	const first, second = "0000:01:00.0", "0000:02:00.0"
	put := func(address, port string) {
		t.Helper()
		link := filepath.Join(root, "bus", "pci", "devices", address)
		must.Do(t, os.MkdirAll(filepath.Dir(link), 0o755))
		_ = os.Remove(link)
		must.Do(t, os.Symlink("../../../devices/pci0000:00/"+port+"/"+address, link))
	}
	p := pciPaths{sysfs: root, reader: driver.NewReader[map[string]driver.PCIPath]("read", nil)}
	check := func(want map[string]driver.PCIPath, addresses ...string) {
		t.Helper()
		got, complete := p.of(addresses)
		diff := cmp.Diff(want, got)
		expect.That(t, diff == "" && complete, "complete: %v, -want +got:\n%s", complete, diff)
	}
	at := func(port string) driver.PCIPath { return driver.PCIPath{Root: "pci0000:00", Port: port} }
	put(first, "0000:00:01.0")
	check(map[string]driver.PCIPath{first: at("0000:00:01.0"), second: {}}, first, second)
	put(first, "0000:00:02.0")
	check(map[string]driver.PCIPath{first: at("0000:00:01.0")}, first)
	check(map[string]driver.PCIPath{})
	check(map[string]driver.PCIPath{first: at("0000:00:02.0")}, first)
	must.Do(t, os.MkdirAll(filepath.Join(root, "bus", "pci", "devices", second), 0o755))
	if got, complete := p.of([]string{first, second}); complete || got[first] != at("0000:00:02.0") {
		t.Errorf("a device that can't be read: complete %v, %v", complete, got)
	}
}
