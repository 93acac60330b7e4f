package simnode

import (
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/sim"
)

// SourceWith returns another source of the node's devices, with other options. Its clock is the
// node's.
func (n *Node) SourceWith(options sim.Options) driver.Source {
	options.Now = n.now
	return sim.NewSource(n.machine, options)
}
