package sysfs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestPCIPathOf reads trees as the kernel has them (Documentation/ABI/testing/sysfs-bus-pci).
func TestPCIPathOf(t *testing.T) {
	const address = "0000:03:00.0"
	for _, tt := range []struct {
		name   string
		folder string // of the device, below devices; empty: the device is not there
		node   string // its numa_node
		online string // the machine's nodes; empty: the kernel knows none
		want   driver.PCIPath
	}{
		{
			"behind a switch", "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:04.0/" + address, "1", "0-1",
			driver.PCIPath{Root: "pci0000:00", Port: "0000:00:01.0", NUMANode: "1"},
		},
		{"of the root complex", "pci0000:03/" + address, "0", "0", driver.PCIPath{Root: "pci0000:03", NUMANode: "0"}},
		{
			"in a domain of a volume management device", "pci0000:80/0000:80:05.5/pci10000:00/10000:00:02.0/" + address, "0",
			"0",
			driver.PCIPath{Root: "pci0000:80", Port: "0000:80:05.5", NUMANode: "0"},
		},
		{
			"below a platform device", "platform/40000000.pcie/pci0000:00/0000:00:00.0/" + address, "-1", "0-1",
			driver.PCIPath{Root: "pci0000:00", Port: "0000:00:00.0"},
		},
		{
			"firmware tells no node, and there is one", "pci0000:00/0000:00:01.0/" + address, "-1", "0",
			driver.PCIPath{Root: "pci0000:00", Port: "0000:00:01.0", NUMANode: "0"},
		},
		{"no nodes", "pci0000:00/0000:00:01.0/" + address, "", "", driver.PCIPath{Root: "pci0000:00", Port: "0000:00:01.0"}},
		{"not there", "", "", "0", driver.PCIPath{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			write := func(path, content string) {
				path = filepath.Join(root, path)
				must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
				must.Do(t, os.WriteFile(path, []byte(content+"\n"), 0o644))
			}
			write("bus/pci/devices/README", "")
			if tt.online != "" {
				write("devices/system/node/online", tt.online)
			}
			if tt.folder != "" {
				write("devices/"+tt.folder+"/vendor", "0x10de")
				if tt.node != "" {
					write("devices/"+tt.folder+"/numa_node", tt.node)
				}
				link := PCIDevice(root, address)
				must.Do(t, os.Symlink("../../../devices/"+tt.folder, link))
			}
			got, err := PCIPathOf(root, address)
			expect.That(t, err == nil && got == tt.want, "got %+v, %v, want %+v", got, err, tt.want)
		})
	}
	root := t.TempDir()
	must.Do(t, os.MkdirAll(PCIDevice(root, address), 0o755))
	if got, err := PCIPathOf(root, address); err == nil {
		t.Errorf("a folder in place of a link: %+v, want an error", got)
	}
}
