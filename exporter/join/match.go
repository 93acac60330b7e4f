package join

import (
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// hardwareKey is an identifier of hardware. Those that are unique within something only have that,
// as the name of the driver.
type hardwareKey struct {
	kind       keyKind
	within, id string
}

type keyKind uint8

// The kinds of identifiers.
const (
	byName keyKind = iota // within the driver
	byUUID
	byPlacement // of a partition
	byInstance  // within the parent
	byPCI
	byNetDev
	byRDMA
	bySerial // within the driver
	byIndex  // within the driver
	byNode   // a device node
)

// hardwareIndex finds devices by their hardware's identifiers. It has positions of devices.
type hardwareIndex struct {
	keys    map[hardwareKey][]int
	cpu     map[int][]int
	learned bool // learn has added something
}

func newHardwareIndex(devices []Device) hardwareIndex {
	x := hardwareIndex{keys: map[hardwareKey][]int{}, cpu: map[int][]int{}}
	for i := range devices {
		h := &devices[i].Entry.Hardware
		if !h.Kind.Measurable() {
			continue
		}
		id := devices[i].ID
		x.add(hardwareKey{byName, id.Driver, id.Device}, i)
		x.add(hardwareKey{bySerial, id.Driver, identifier(h.Serial)}, i)
		x.add(hardwareKey{byIndex, id.Driver, h.Index}, i)
		x.add(hardwareKey{byUUID, "", identifier(h.UUID)}, i)
		x.add(hardwareKey{byPlacement, "", h.Placement}, i)
		x.add(hardwareKey{byPCI, "", h.PCI}, i)
		x.add(hardwareKey{byNetDev, "", h.NetDev}, i)
		x.learn(i, h)
		for _, node := range h.DeviceNodes {
			x.add(hardwareKey{byNode, "", node}, i)
		}
		for _, cpu := range h.CPUs {
			x.cpu[cpu] = append(x.cpu[cpu], i)
		}
	}
	x.learned = false
	return x
}

// add adds the position of a device with a key, unless the key is unknown or has the device.
func (x *hardwareIndex) add(key hardwareKey, i int) {
	if key.id != "" && !slices.Contains(x.keys[key], i) {
		x.learned = true
		x.keys[key] = append(x.keys[key], i)
	}
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
	x.add(hardwareKey{byRDMA, "", h.RDMADev}, i)
	if h.Parent != "" && h.Instance != "" {
		begin, _, _ := strings.Cut(h.Instance, "/")
		x.add(hardwareKey{byInstance, strings.ToLower(h.Parent), h.Instance}, i)
		x.add(hardwareKey{byInstance, strings.ToLower(h.Parent), begin}, i)
	}
}

// find returns the devices that are the hardware of the sample, by the best key that both have:
// name (if the source knows it), UUID, placement of a partition, its instance number, PCI address,
// network interface, RDMA device, serial number and index among the driver's devices, device node.
// A key that contradicts a better one does not match. Most keys are unique, so that the result
// usually is one device.
//
// An incomplete instance number, a serial number, an index or a device node that several devices of
// one driver share identifies none of them (two GPUs may be on one board, a CDI spec may have the
// nodes of all devices of a claim). Of all but the first, such devices are returned as ambiguous.
func (x *hardwareIndex) find(devices []Device, sample *driver.Sample) (found, ambiguous []int) {
	h := &sample.Hardware
	if sample.Device != "" {
		return x.keys[hardwareKey{byName, sample.Driver, sample.Device}], nil
	}
	for _, key := range [...]hardwareKey{
		{byUUID, "", strings.ToLower(h.UUID)},
		{byPlacement, "", h.Placement},
		{byInstance, strings.ToLower(h.Parent), h.Instance},
		{byPCI, "", h.PCI},
		{byNetDev, "", h.NetDev},
		{byRDMA, "", h.RDMADev},
		{bySerial, sample.Driver, strings.ToLower(h.Serial)},
		{byIndex, sample.Driver, h.Index},
	} {
		candidates := x.keys[key]
		if key.kind == byInstance && !strings.Contains(h.Instance, "/") && sameDriver(devices, candidates) {
			continue
		}
		found := fitting(devices, sample, candidates)
		switch {
		case found == nil:
		case len(found) > 1 && (key.kind == bySerial || key.kind == byIndex):
			return nil, found
		default:
			return found, nil
		}
	}
	for _, node := range h.DeviceNodes {
		found := fitting(devices, sample, x.keys[hardwareKey{byNode, "", node}])
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
	candidates := x.keys[hardwareKey{byUUID, "", strings.ToLower(key)}]
	if len(candidates) == 0 {
		candidates = x.keys[hardwareKey{byPCI, "", key}]
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
	if h.ParentShare == 0 && from.ParentShare >= 0 && from.ParentShare <= 1 {
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
