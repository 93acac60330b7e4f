package node

import (
	"context"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
)

// PCIPaths reads the paths of PCI devices by their addresses, and returns whether all could be
// read. It waits a moment at most.
func (n *Node) PCIPaths(addresses []string) (paths map[string]driver.PCIPath, complete bool) {
	paths, err := n.paths.Do(context.Background(), driver.ReadWait,
		func(context.Context) (map[string]driver.PCIPath, error) { return readPaths(n.plugin.sysfs, addresses) })
	return paths, err == nil
}

// readPaths reads the paths of PCI devices. With an error, it returns those that it could read.
func readPaths(root string, addresses []string) (map[string]driver.PCIPath, error) {
	out := make(map[string]driver.PCIPath, len(addresses))
	var failed error
	for _, address := range addresses {
		path, err := inventory.PCIPath(root, address)
		if err != nil {
			failed = err
			continue
		}
		out[address] = path
	}
	return out, failed
}
