package drivertest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestWriteTree(t *testing.T) {
	folder := t.TempDir()
	WriteTree(t, folder, `# two files and a link

devices/0000:3b:00.0/vendor: 0x15b3
class/net/eth0/device -> ../../../devices/0000:3b:00.0
devices/0000:3b:00.0/vendor: 0x8086
`)
	got, err := os.ReadFile(filepath.Join(folder, "class", "net", "eth0", "device", "vendor"))
	expect.That(t, err == nil && string(got) == "0x8086\n", "read through the link: %q, %v", got, err)
	for _, line := range []string{"no content", "class/net/eth0: a file where a folder is"} {
		expect.That(t, writeNode(folder, line) != nil, "%q was written", line)
	}
}
