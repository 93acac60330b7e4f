package ledger

import (
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// identity is the hardware behind a device's name, as far as it was ever known. Empty fields are
// unknown.
type identity struct {
	uuid, pci, netdev, rdma string
	cpus                    []int
}

// identityOf returns what identifies hardware. uuid is the UUID that is probably its own.
func identityOf(h *driver.Hardware, uuid string) identity {
	if !strings.EqualFold(uuid, h.UUID) {
		uuid = strings.ToLower(h.UUID)
	}
	return identity{uuid: uuid, pci: h.PCI, netdev: h.NetDev, rdma: h.RDMADev, cpus: h.CPUs}
}

// replacedBy reports whether the other hardware is another one. The first field that is known of
// both decides, in order: UUID, PCI address, network interface, RDMA device, CPUs.
func (i *identity) replacedBy(other *identity) bool {
	for _, field := range [...][2]string{
		{i.uuid, other.uuid}, {i.pci, other.pci}, {i.netdev, other.netdev}, {i.rdma, other.rdma},
	} {
		if field[0] != "" && field[1] != "" {
			return field[0] != field[1]
		}
	}
	return len(i.cpus) > 0 && len(other.cpus) > 0 && !slices.Equal(i.cpus, other.cpus)
}

// learn takes over the fields that the other hardware, which is the same, knows.
func (i *identity) learn(other *identity) {
	for _, field := range []struct {
		to   *string
		from string
	}{{&i.uuid, other.uuid}, {&i.pci, other.pci}, {&i.netdev, other.netdev}, {&i.rdma, other.rdma}} {
		if field.from != "" {
			*field.to = field.from
		}
	}
	if len(other.cpus) > 0 {
		i.cpus = other.cpus
	}
}

// identify compares the hardware behind the device with that of before. Other hardware starts new
// baselines: between the last reading of the old hardware and the first of the new one nothing is
// counted. The device's counters and its holders go on.
func (d *deviceBook) identify(h *driver.Hardware, now time.Time) {
	present := identityOf(h, d.identity.uuid)
	if !d.identity.replacedBy(&present) {
		d.identity.learn(&present)
		return
	}
	d.identity, d.identified, d.activity = present, now, nil
	for _, m := range d.meters {
		m.replaced, m.idle = true, 0
	}
	for _, c := range d.counters {
		c.idle = 0
	}
}
