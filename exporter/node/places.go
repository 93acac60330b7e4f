package node

import (
	"context"
	"maps"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
)

// pciPaths knows where PCI devices are in the machine. It reads the path of a device once.
type pciPaths struct {
	sysfs  string
	reader *driver.Worker[map[string]driver.PCIPath]
	known  map[string]driver.PCIPath
}

// PCIPaths returns the paths of PCI devices by their addresses, and whether all could be read. It
// waits a moment at most. It is not safe for concurrent use.
func (n *Node) PCIPaths(addresses []string) (paths map[string]driver.PCIPath, complete bool) {
	return n.paths.of(addresses)
}

func (p *pciPaths) of(addresses []string) (paths map[string]driver.PCIPath, complete bool) {
	known := map[string]driver.PCIPath{} // forget devices that are not requested
	var missing []string
	for _, address := range addresses {
		if path, ok := p.known[address]; ok {
			known[address] = path
		} else {
			missing = append(missing, address)
		}
	}
	p.known = known
	if len(missing) == 0 {
		return known, true
	}
	read, err := p.reader.Do(context.Background(), driver.ReadWait,
		func(context.Context) (map[string]driver.PCIPath, error) { return readPaths(p.sysfs, missing) })
	known = maps.Clone(known)
	maps.Copy(known, read)
	p.known = known
	return known, err == nil
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
