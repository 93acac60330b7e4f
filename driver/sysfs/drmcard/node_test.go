package drmcard

import (
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
)

// What is a node has an address as the kernel writes it, and a render node's number.
func FuzzParseNode(f *testing.F) {
	f.Add([]byte("location_id 268469768\ndomain 2\ndrm_render_minor 131\n"))
	f.Add([]byte("cpu_cores_count 64\nlocation_id 0\ndomain 0\ndrm_render_minor 0\n"))
	f.Add([]byte("location_id 18446744073709551615\ndomain 4294967295\ndrm_render_minor 128"))
	f.Add([]byte("domain 18446744073709551615\ndrm_render_minor 128"))
	f.Fuzz(func(t *testing.T, content []byte) {
		pci, n, ok := parseNode(content)
		if ok && (driver.NormalizePCI(pci) != pci || n.render < 128 || n.order > 0x7f) {
			t.Errorf("%q is node %+v of %q", content, n, pci)
		}
	})
}
