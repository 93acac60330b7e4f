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

func TestPCIPaths(t *testing.T) {
	root := t.TempDir()
	const first, second = "0000:01:00.0", "0000:02:00.0"
	devices := filepath.Join(root, "bus", "pci", "devices")
	must.Do(t, os.MkdirAll(devices, 0o755))
	must.Do(t, os.Symlink("../../../devices/pci0000:00/0000:00:01.0/"+first, filepath.Join(devices, first)))
	n := newTestNode(t, Config{Sysfs: root})
	found := driver.PCIPath{Root: "pci0000:00", Port: "0000:00:01.0"}
	got, complete := n.PCIPaths([]string{first, second})
	diff := cmp.Diff(map[string]driver.PCIPath{first: found, second: {}}, got)
	expect.That(t, diff == "" && complete, "complete: %v, -want +got:\n%s", complete, diff)
	must.Do(t, os.Mkdir(filepath.Join(devices, second), 0o755))
	if got, complete := n.PCIPaths([]string{first, second}); complete || got[first] != found {
		t.Errorf("a device that can't be read: complete %v, %v", complete, got)
	}
}
