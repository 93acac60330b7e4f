package join

import (
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// hardwareIndex finds devices by their hardware's identifiers. It maps each key to positions of
// devices.
type hardwareIndex struct {
	uuid, placement, pci, netdev, rdma, node map[string][]int
	name                                     map[[2]string][]int // driver, device
	serial, index                            map[[2]string][]int // driver, serial or index
	instance                                 map[[2]string][]int // parent, instance
	cpu                                      map[int][]int

	learned bool // learn has added something
}

func newHardwareIndex(devices []Device) hardwareIndex {
	x := hardwareIndex{
		uuid: map[string][]int{}, placement: map[string][]int{}, pci: map[string][]int{}, netdev: map[string][]int{},
		rdma: map[string][]int{},
		node: map[string][]int{}, name: map[[2]string][]int{}, serial: map[[2]string][]int{}, index: map[[2]string][]int{},
		instance: map[[2]string][]int{}, cpu: map[int][]int{},
	}
	for i := range devices {
		h := &devices[i].Entry.Hardware
		if !h.Kind.Measurable() {
			continue
		}
		name := [2]string{devices[i].ID.Driver, devices[i].ID.Device}
		x.name[name] = append(x.name[name], i)
		addOf(x.serial, devices[i].ID.Driver, identifier(h.Serial), i)
		addOf(x.index, devices[i].ID.Driver, h.Index, i)
		add(x.uuid, identifier(h.UUID), i)
		add(x.placement, h.Placement, i)
		add(x.pci, h.PCI, i)
		add(x.netdev, h.NetDev, i)
		x.learn(i, h)
		for _, node := range h.DeviceNodes {
			add(x.node, node, i)
		}
		for _, cpu := range h.CPUs {
			x.cpu[cpu] = append(x.cpu[cpu], i)
		}
	}
	x.learned = false
	return x
}

// identifier normalizes a UUID or serial number. It returns "" for placeholders.
func identifier(text string) string {
	if driver.IsPlaceholder(text) {
		return ""
	}
	return strings.ToLower(text)
}

// learn adds a device's instance number within its parent, and its RDMA device. Inventories may
// lack them: a source that finds the device by a better key provides them to later sources, which
// may have no other key.
func (x *hardwareIndex) learn(i int, h *driver.Hardware) {
	if h.RDMADev != "" && !slices.Contains(x.rdma[h.RDMADev], i) {
		x.learned = true
		add(x.rdma, h.RDMADev, i)
	}
	key := instanceKey(h)
	if key == [2]string{} {
		return
	}
	begin, _, _ := strings.Cut(h.Instance, "/")
	for _, key := range [][2]string{key, {key[0], begin}} {
		if !slices.Contains(x.instance[key], i) {
			x.learned = true
			x.instance[key] = append(x.instance[key], i)
		}
	}
}

// part returns the devices with the hardware's parent and instance number. An incomplete number
// that several devices of one driver share identifies none of them.
func (x *hardwareIndex) part(devices []Device, h *driver.Hardware) []int {
	found := x.instance[instanceKey(h)]
	if !strings.Contains(h.Instance, "/") && sameDriver(devices, found) {
		return nil
	}
	return found
}

func instanceKey(h *driver.Hardware) [2]string {
	if h.Parent == "" || h.Instance == "" {
		return [2]string{}
	}
	return [2]string{strings.ToLower(h.Parent), h.Instance}
}

// addOf adds a key that is unique within one driver.
func addOf(m map[[2]string][]int, driverName, key string, i int) {
	if key != "" {
		m[[2]string{driverName, key}] = append(m[[2]string{driverName, key}], i)
	}
}

func add(m map[string][]int, key string, i int) {
	if key != "" {
		m[key] = append(m[key], i)
	}
}

// find returns the devices that are the hardware of the sample, by the best key that both have:
// name (if the source knows it), UUID, placement of a partition, its instance number, PCI address,
// network interface, RDMA device, serial number and index among the driver's devices, device node.
// A key that contradicts a better one does not match. Most keys are unique, so that the result
// usually is one device.
//
// A number or device node that several devices of one driver share identifies none of them (two
// GPUs may be on one board, a CDI spec may have the nodes of all devices of a claim): such devices
// are returned as ambiguous.
func (x *hardwareIndex) find(devices []Device, sample *driver.Sample) (found, ambiguous []int) {
	h := &sample.Hardware
	if sample.Device != "" {
		return x.name[[2]string{sample.Driver, sample.Device}], nil
	}
	if found := fitting(devices, sample, x.uuid[strings.ToLower(h.UUID)]); found != nil {
		return found, nil
	}
	if found := fitting(devices, sample, x.placement[h.Placement]); found != nil {
		return found, nil
	}
	if found := fitting(devices, sample, x.part(devices, h)); found != nil {
		return found, nil
	}
	if found := fitting(devices, sample, x.pci[h.PCI]); found != nil {
		return found, nil
	}
	if found := fitting(devices, sample, x.netdev[h.NetDev]); found != nil {
		return found, nil
	}
	if found := fitting(devices, sample, x.rdma[h.RDMADev]); found != nil {
		return found, nil
	}
	for _, candidates := range [][]int{
		x.serial[[2]string{sample.Driver, strings.ToLower(h.Serial)}], x.index[[2]string{sample.Driver, h.Index}],
	} {
		switch found := fitting(devices, sample, candidates); len(found) {
		case 0:
		case 1:
			return found, nil
		default:
			return nil, found
		}
	}
	for _, node := range h.DeviceNodes {
		found := fitting(devices, sample, x.node[node])
		if found == nil {
			continue
		}
		if !sameDriver(devices, found) {
			return found, nil
		}
		ambiguous = append(ambiguous, found...)
	}
	return nil, ambiguous
}

// named returns the position of the device that a sample names by its complete ID, -1 for none. A
// device that its driver does not list is rejected.
func (j *joiner) named(source string, sample *driver.Sample) int {
	id := driver.ID{Driver: sample.Driver, Pool: sample.Pool, Device: sample.Device}
	n, found := j.position(id)
	if found {
		return n
	}
	for n, _ := j.position(driver.ID{Driver: id.Driver}); n < len(j.devices) && j.devices[n].ID.Driver == id.Driver; n++ {
		if !j.devices[n].Entry.Unlisted {
			j.reject(source, driver.ReasonNoMatch, 1)
			break
		}
	}
	return -1
}

// position returns the position of a device's ID in the sorted devices, or where it would be
// inserted.
func (j *joiner) position(id driver.ID) (n int, found bool) {
	return slices.BinarySearchFunc(j.devices, id, func(d Device, id driver.ID) int { return d.ID.Compare(id) })
}

// sameDriver reports whether two of the devices have the same driver.
func sameDriver(devices []Device, found []int) bool {
	for i, n := range found {
		if slices.ContainsFunc(found[:i], func(m int) bool { return devices[m].ID.Driver == devices[n].ID.Driver }) {
			return true
		}
	}
	return false
}

// fitting returns the candidates that no other key of the sample contradicts; nil for none.
func fitting(devices []Device, sample *driver.Sample, candidates []int) []int {
	if !slices.ContainsFunc(candidates, func(i int) bool { return !fits(&devices[i], sample) }) {
		if len(candidates) == 0 {
			return nil
		}
		return candidates
	}
	var out []int
	for _, i := range candidates {
		if fits(&devices[i], sample) {
			out = append(out, i)
		}
	}
	return out
}

func fits(d *Device, sample *driver.Sample) bool {
	h, other := &d.Entry.Hardware, &sample.Hardware
	driverless := d.ID.Pool == "" // named by a device plugin's resource, or by the vendor of a CDI name
	return (sample.Driver == "" || sample.Driver == d.ID.Driver || driverless) &&
		(h.UUID == "" || other.UUID == "" || strings.EqualFold(h.UUID, other.UUID)) &&
		(h.PCI == "" || other.PCI == "" || h.PCI == other.PCI) &&
		(h.NetDev == "" || other.NetDev == "" || h.NetDev == other.NetDev)
}

// parent returns the position of the device with a UUID or PCI address. If there are several, it
// prefers the same driver and pool.
func (x *hardwareIndex) parent(devices []Device, of driver.ID, key string) (int, bool) {
	candidates := x.uuid[strings.ToLower(key)]
	if len(candidates) == 0 {
		candidates = x.pci[key]
	}
	for _, i := range candidates {
		if id := devices[i].ID; id.Driver == of.Driver && id.Pool == of.Pool && id != of {
			return i, true
		}
	}
	return 0, false
}

// completeHardware fills fields that the inventory left empty.
func completeHardware(h, from *driver.Hardware) {
	fill := func(to *string, from string) {
		if *to == "" && validLabel(from) {
			*to = from
		}
	}
	fill(&h.UUID, from.UUID)
	fill(&h.PCI, from.PCI)
	fill(&h.Parent, from.Parent)
	fill(&h.Instance, from.Instance)
	fill(&h.NetDev, from.NetDev)
	fill(&h.RDMADev, from.RDMADev)
	fill(&h.Vendor, from.Vendor)
	fill(&h.Model, from.Model)
	fill(&h.Profile, from.Profile)
	fill(&h.Serial, from.Serial)
	fill(&h.FirmwareVersion, from.FirmwareVersion)
	fill(&h.CUDAVersion, from.CUDAVersion)
	fill(&h.NUMANode, from.NUMANode)
	fill(&h.PCIeRoot, from.PCIeRoot)
	if h.ParentShare == 0 && validShare(from.ParentShare) {
		h.ParentShare = from.ParentShare
	}
}

// singleCPU returns the logical CPU of a sample, false if it is not a sample of one CPU.
func singleCPU(sample *driver.Sample) (int, bool) {
	if len(sample.Hardware.CPUs) != 1 {
		return 0, false
	}
	return sample.Hardware.CPUs[0], true
}

// matchCPU adds the readings of one CPU to the devices that have the CPU. A device's reading is the
// mean over its CPUs: a device with 4 of 8 CPUs busy has a utilization of 0.5.
func (j *joiner) matchCPU(source string, from place, cpu int, sample *driver.Sample) {
	for _, n := range j.index.cpu[cpu] {
		d := &j.devices[n]
		j.facts[n].matched, j.facts[n].answered = true, true
		for _, r := range sample.Readings {
			if reason := RejectReading(j.catalogue, &r, d.Entry.Kind); reason != "" {
				j.rejectValue(source, reason, &r)
				j.facts[n].refused = true
				continue
			}
			if spec := j.catalogue.Spec(r.Quantity); spec.MeasuresBasis && spec.Basis == driver.ByTime {
				j.facts[n].keepBusy(d, cpu, r.Value)
			}
			r.Value /= float64(len(d.Entry.CPUs))
			if !d.addCPU(Reading{Reading: r, Origin: Origin{Source: source}, place: from, cpus: 1}) {
				j.rejectValue(source, driver.ReasonDuplicate, &r)
			}
		}
	}
}

// addCPU adds the reading of one CPU to the device's. It returns false if the device already has
// one of that CPU.
func (d *Device) addCPU(r Reading) bool {
	for i := range d.Readings {
		have := &d.Readings[i]
		if have.precedence == r.precedence && compareReadings(have, &r) == 0 {
			if have.sample == r.sample {
				return false
			}
			have.sample = r.sample
			have.Value += r.Value
			have.cpus++
			if r.At.After(have.At) {
				have.At = r.At
			}
			if r.Since.After(have.Since) {
				have.Since = r.Since
			}
			return true
		}
	}
	d.Readings = append(d.Readings, r)
	return true
}

// dropPartialCPUs drops readings that some CPUs of the device lack (one is offline), since their
// mean would be wrong.
func dropPartialCPUs(d *Device) {
	d.Readings = slices.DeleteFunc(d.Readings, func(r Reading) bool {
		return r.cpus != 0 && int(r.cpus) != len(d.Entry.CPUs)
	})
}
