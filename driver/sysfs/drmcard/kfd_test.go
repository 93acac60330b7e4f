package drmcard

import (
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// Every node has an address in the kernel's format, and a render node's number.
func FuzzNode(f *testing.F) {
	f.Add([]byte("location_id 268469768\ndomain 2\ndrm_render_minor 131\nnum_sdma_engines 2\n"))
	f.Add([]byte("cpu_cores_count 64\nlocation_id 0\ndomain 0\ndrm_render_minor 0\n"))
	f.Add([]byte("location_id 18446744073709551615\ndomain 4294967295\ndrm_render_minor 128"))
	f.Add([]byte("domain 18446744073709551615\ndrm_render_minor 128"))
	f.Add([]byte("drm_render_minor 128\nnum_sdma_engines 18446744073709551615\nnum_sdma_xgmi_engines 1"))
	f.Fuzz(func(t *testing.T, content []byte) {
		properties := parseProperties(content)
		lines := strings.Count(string(content), "\n") + 1
		expect.That(t, len(properties) <= lines, "%q has %d numbers in %d lines", content, len(properties), lines)
		n, ok := nodeOf(1, 2, properties)
		pci := n.Slot + ".0"
		if ok && (driver.NormalizePCI(pci) != pci || n.Render < 128 || n.part > 0x7f<<16|2 || n.Engines > 2*maxEngines) {
			t.Errorf("%q is node %+v of %q", content, n, pci)
		}
	})
}
