package drivertest

import (
	"os"
	"path/filepath"
	"testing"
)

func TestWriteTree(t *testing.T) {
	folder := t.TempDir()
	WriteTree(t, folder, `# two files and a link

devices/0000:3b:00.0/vendor: 0x15b3
class/net/eth0/device -> ../../../devices/0000:3b:00.0
devices/0000:3b:00.0/vendor: 0x8086
`)
	got, err := os.ReadFile(filepath.Join(folder, "class", "net", "eth0", "device", "vendor"))
	if err != nil || string(got) != "0x8086\n" {
		t.Errorf("read through the link: %q, %v", got, err)
	}
	for _, line := range []string{"no content", "class/net/eth0: a file where a folder is"} {
		if err := writeNode(folder, line); err == nil {
			t.Errorf("%q was written", line)
		}
	}
}
