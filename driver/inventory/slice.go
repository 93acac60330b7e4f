package inventory

import (
	"encoding/json"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// The types below have the used parts of ResourceSliceSpec in the JSON form that v1, v1beta2,
// v1beta1 and v1alpha3 share. They keep devices, attributes and quantities raw, so that a malformed
// one can be rejected alone; the types of k8s.io/api would fail as a whole.

// slice is the spec of a ResourceSlice.
type slice struct {
	Driver string `json:"driver"`
	Pool   struct {
		Name       string `json:"name"`
		Generation int64  `json:"generation"`
		Slices     int64  `json:"resourceSliceCount"`
	} `json:"pool"`
	nodeSelection

	PerDeviceNodeSelection bool              `json:"perDeviceNodeSelection"`
	SkipNodeOperations     []string          `json:"skipNodeOperations"`
	SharedCounters         []wireCounters    `json:"sharedCounters"`
	Devices                []json.RawMessage `json:"devices"`
}

// wireDevice is the JSON form of a device in v1 and v1beta2. In v1beta1 and v1alpha3, everything
// but the name is in basic.
type wireDevice struct {
	Name string `json:"name"`
	wireBody
	Basic *wireBody `json:"basic"`
}

type wireBody struct {
	nodeSelection

	Attributes               map[string]resourcev1.DeviceAttribute `json:"attributes"`
	Capacity                 map[string]json.RawMessage            `json:"capacity"`
	Taints                   []resourcev1.DeviceTaint              `json:"taints"`
	ConsumesCounters         []wireCounters                        `json:"consumesCounters"`
	AllowMultipleAllocations bool                                  `json:"allowMultipleAllocations"`
	BindingConditions        []json.RawMessage                     `json:"bindingConditions"`
}

// Slice is a ResourceSlice of any version, whose devices are not decoded yet.
type Slice struct {
	name string
	spec slice
}

// DecodeSlice decodes a ResourceSlice. It returns false if the slice is malformed or has no driver
// or pool. [Slice.OfferTo] decodes its devices.
func DecodeSlice(raw json.RawMessage) (Slice, bool) {
	var object struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec slice `json:"spec"`
	}
	if json.Unmarshal(raw, &object) != nil {
		return Slice{}, false
	}
	s := Slice{object.Metadata.Name, object.Spec}
	return s, manifest.ValidName(s.spec.Driver) && manifest.ValidName(s.spec.Pool.Name)
}

// Name returns the name of the object. It may be empty or malformed.
func (s *Slice) Name() string { return s.name }

// Driver returns the name of the DRA driver.
func (s *Slice) Driver() string { return s.spec.Driver }

// Offer has the devices and counters of a slice that are available to one node. An Offer without
// devices still counts as a slice of its pool.
type Offer struct {
	driver, pool       string
	generation, slices int64 // of the pool
	counters           []counters
	devices            []offered
	size               int
}

type offered struct {
	name     string
	entry    driver.Entry
	consumes []counters
	slices   int    // compute slices of a MIG device; 0: not a MIG device
	pci      string // PCI address of the GPU of a MIG device
}

// Upper bounds of the memory of an offer and of a device without their strings and lists, in bytes.
// They include the entry in an inventory.
const (
	offerSize  = 384
	deviceSize = 1024
)

// OfferTo returns the offer of the slice to a node. Devices are omitted and counted in rejected if
// they are malformed, if unknown labels of the node decide whether they are available
// (ReasonNodeSelector), and if they would make the offer larger than room bytes
// (ReasonTooManyDevices).
func (s *Slice) OfferTo(node Node, room int, rejected driver.Rejections) Offer {
	spec := &s.spec
	o := Offer{
		driver: spec.Driver, pool: spec.Pool.Name, generation: spec.Pool.Generation, slices: spec.Pool.Slices,
		size: offerSize + len(s.name) + len(spec.Driver) + len(spec.Pool.Name),
	}
	if !spec.PerDeviceNodeSelection && !spec.here(node, len(spec.Devices), rejected) {
		return o
	}
	o.offerCounters(decodeCounters(spec.Driver, spec.SharedCounters, rejected), room)
	for i, raw := range spec.Devices {
		d, ok := decodeDevice(spec.Driver, raw, rejected)
		if !ok || spec.PerDeviceNodeSelection && !d.here(node, 1, rejected) {
			continue
		}
		device := newOffered(&d, spec.NodeName != "")
		device.entry.ManyNodes = spec.many() || spec.PerDeviceNodeSelection && d.many()
		device.entry.Socketless = spec.socketless()
		size := deviceSize + len(d.name) + sizeOf(&device.entry) + sizeOfCounters(d.consumes)
		if size > room-o.size {
			rejected.Add(driver.ReasonTooManyDevices, len(spec.Devices)-i)
			break
		}
		o.size += size
		o.devices = append(o.devices, device)
	}
	return o
}

// socketless reports whether the kubelet does not call the driver to prepare the slice's devices.
// The API allows to skip unprepare alone, but not prepare (ResourceSliceSpec.SkipNodeOperations).
func (s *slice) socketless() bool {
	return slices.Contains(s.SkipNodeOperations, string(resourcev1.SkipNodeOperationAll)) ||
		slices.Contains(s.SkipNodeOperations, string(resourcev1.SkipNodeOperationNodePrepareResources))
}

// offerCounters adds the counter sets for which there is room.
func (o *Offer) offerCounters(sets []counters, room int) {
	for i := range sets {
		if size := sizeOfCounters(sets[i : i+1]); size <= room-o.size {
			o.size += size
			o.counters = append(o.counters, sets[i])
		}
	}
}

// newOffered returns the parts of a device that are kept.
func newOffered(d *device, local bool) offered {
	out := offered{name: d.name, consumes: d.consumes, entry: driver.Entry{
		Hardware: describe(*d), Capacity: d.capacity, Policies: d.policies, Taints: d.taints,
		Shareable: d.shareable, Local: local,
		Conditional: d.conditional, Health: healthOfAttributes(d.attributes),
	}}
	if h := &out.entry.Hardware; h.Kind == driver.KindPartition && h.Vendor == "nvidia" {
		out.slices = nvidia.ComputeSlices(h.Profile)
		out.pci = d.attributes.pci(standardPCIBusID)
	}
	return out
}

// Size returns an upper bound of the memory of the offer, in bytes.
func (o *Offer) Size() int { return o.size }

// sizeOf returns the size of an entry's strings and lists, in bytes.
func sizeOf(e *driver.Entry) int {
	h := &e.Hardware
	size := len(h.CPUs) * 8
	for _, text := range [...]string{
		h.UUID, h.PCI, h.Parent, h.Placement, h.Instance, h.NetDev, h.RDMADev, h.Index, h.Vendor, h.Model,
		h.Profile, h.Serial, h.FirmwareVersion, h.DriverVersion, h.CUDAVersion, h.NUMANode,
		h.PCIeRoot,
	} {
		size += len(text)
	}
	for _, path := range h.DeviceNodes {
		size += 16 + len(path)
	}
	size += sizeOfAmounts(e.Capacity)
	for _, p := range e.Policies {
		size += 64 + len(p.Resource) + 8*len(p.Values)
	}
	for _, t := range e.Taints {
		size += 64 + len(t.Key) + len(t.Value) + len(t.Effect)
	}
	return size
}

func sizeOfAmounts(amounts []driver.Amount) int {
	size := 24 * len(amounts)
	for _, a := range amounts {
		size += len(a.Resource)
	}
	return size
}

func sizeOfCounters(sets []counters) int {
	size := 0
	for _, c := range sets {
		size += 64 + len(c.set) + sizeOfAmounts(c.amounts)
	}
	return size
}

// device is a device of a slice, in a form that is common to all versions of the API.
type device struct {
	driver, name string
	nodeSelection

	attributes attributes
	capacity   []driver.Amount
	policies   []driver.RequestPolicy
	consumes   []counters
	taints     []driver.Taint
	shareable  bool

	conditional bool // it has binding conditions
}

// decodeDevice decodes a device of the driver. If it is malformed, it counts the reason in rejected
// and returns false.
func decodeDevice(driverName string, raw json.RawMessage, rejected driver.Rejections) (device, bool) {
	var wire wireDevice
	if json.Unmarshal(raw, &wire) != nil || !manifest.ValidName(wire.Name) {
		rejected.Add(driver.ReasonMalformedDevice, 1)
		return device{}, false
	}
	body := wire.wireBody
	if wire.Basic != nil {
		body = *wire.Basic
	}
	d := device{
		driver: driverName, name: wire.Name,
		nodeSelection: body.nodeSelection, shareable: body.AllowMultipleAllocations,
		conditional: len(body.BindingConditions) > 0,
	}
	d.attributes = ownAttributes(driverName, body.Attributes)
	d.capacity = decodeCapacity(driverName, body.Capacity, rejected)
	if d.shareable {
		d.policies = decodePolicies(driverName, body.Capacity, rejected)
	}
	d.consumes = decodeCounters(driverName, body.ConsumesCounters, rejected)
	for _, t := range body.Taints {
		d.taints = append(d.taints, newTaint(t, ""))
	}
	return d, true
}

// decodeCapacity returns the values of capacities. In v1alpha3 a capacity is only its value.
func decodeCapacity(driverName string, raw map[string]json.RawMessage, rejected driver.Rejections) []driver.Amount {
	values := make(map[string]json.RawMessage, len(raw))
	for name, raw := range raw {
		if raw[0] != '{' {
			values[name] = raw
			continue
		}
		var capacity struct {
			Value json.RawMessage `json:"value"`
		}
		if json.Unmarshal(raw, &capacity) != nil {
			rejected.Add(driver.ReasonMalformedCapacity, 1)
			continue
		}
		values[name] = capacity.Value
	}
	amounts, malformed := manifest.Amounts(driverName, values)
	rejected.Add(driver.ReasonMalformedCapacity, malformed)
	return amounts
}
