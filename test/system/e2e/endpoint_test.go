package e2e

import (
	"os"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// When the inventory file becomes invalid or is deleted, the last inventory stays in use, and the
// error is reported.
func TestInventoryBreaks(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	file := n.inventory(gpus(2))
	p := start(t, n.flags(flags{"inventory.file": file}))
	p.eventually("aware of the holders", func() bool { return holders(p) == 1 })
	p.scrape().want(1, "dra_exporter_source_up", "source", "slices")
	n.inventory("a: [b")
	p.eventually("down", func() bool { return p.scrape().is(0, "dra_exporter_source_up", "source", "slices") })
	p.scrape().want(1, "dra_device_info", "device", "gpu-1", "uuid", uuid(1))
	must.Do(t, os.Remove(file))
	time.Sleep(1500 * time.Millisecond) // a tick
	p.scrape().want(1, "dra_device_info", "device", "gpu-1", "uuid", uuid(1))
	n.inventory(gpus(3))
	p.eventually("up again", func() bool { return p.scrape().is(1, "dra_exporter_source_up", "source", "slices") })
	p.scrape().want(1, "dra_device_info", "device", "gpu-2", "uuid", uuid(2))
}
