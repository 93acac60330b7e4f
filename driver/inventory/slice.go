package inventory

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// slice is the spec of a ResourceSlice in the JSON form that v1, v1beta2, v1beta1 and v1alpha3
// share. Its devices are decoded one by one, so that a malformed one is rejected alone.
type slice struct {
	resourcev1.ResourceSliceSpec
	Devices []json.RawMessage `json:"devices"`
}

// device is a device of a slice. In v1beta1 and v1alpha3, everything but the name is in basic.
type device struct {
	driver string
	body
	Basic      *body `json:"basic"`
	attributes attributes
}

type body struct {
	resourcev1.Device
	Capacity map[resourcev1.QualifiedName]capacity `json:"capacity"`
}

// capacity is a capacity of a device. In v1alpha3 it is only its value.
type capacity struct{ resourcev1.DeviceCapacity }

// UnmarshalJSON implements [json.Unmarshaler].
func (c *capacity) UnmarshalJSON(raw []byte) error {
	if raw[0] == '{' {
		return json.Unmarshal(raw, &c.DeviceCapacity)
	}
	return json.Unmarshal(raw, &c.Value)
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
		metav1.PartialObjectMetadata
		Spec slice `json:"spec"`
	}
	if json.Unmarshal(raw, &object) != nil {
		return Slice{}, false
	}
	s := Slice{object.Name, object.Spec}
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

// OfferTo returns the offer of the slice to a node ("": to any). Devices are omitted and counted in
// rejected if they are malformed, if labels of the node decide whether they are available
// (ReasonNodeSelector), and if they would make the offer larger than room bytes
// (ReasonTooManyDevices).
func (s *Slice) OfferTo(node string, room int, rejected driver.Rejections) Offer {
	spec := &s.spec
	o := Offer{
		driver: spec.Driver, pool: spec.Pool.Name, generation: spec.Pool.Generation, slices: spec.Pool.ResourceSliceCount,
		size: offerSize + len(s.name) + len(spec.Driver) + len(spec.Pool.Name),
	}
	nodes := newNodeSelection(spec.NodeName, spec.NodeSelector, spec.AllNodes)
	perDevice := ptr.Deref(spec.PerDeviceNodeSelection, false)
	if !perDevice && !nodes.here(node, len(spec.Devices), rejected) {
		return o
	}
	for _, set := range spec.SharedCounters {
		o.offerCounters(newCounters(spec.Driver, set.Name, set.Counters, rejected), room)
	}
	for i, raw := range spec.Devices {
		d, ok := decodeDevice(spec.Driver, raw, rejected)
		own := newNodeSelection(d.NodeName, d.NodeSelector, d.AllNodes)
		if !ok || perDevice && !own.here(node, 1, rejected) {
			continue
		}
		device := newOffered(&d, rejected)
		device.entry.Local, device.entry.ManyNodes = nodes.name != "", nodes.many() || perDevice && own.many()
		device.entry.Socketless = spec.socketless()
		size := deviceSize + len(d.Name) + sizeOf(&device.entry) + sizeOfCounters(device.consumes)
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
	return slices.Contains(s.SkipNodeOperations, resourcev1.SkipNodeOperationAll) ||
		slices.Contains(s.SkipNodeOperations, resourcev1.SkipNodeOperationNodePrepareResources)
}

// offerCounters adds a counter set if there is room.
func (o *Offer) offerCounters(set counters, room int) {
	if size := sizeOfCounters([]counters{set}); size <= room-o.size {
		o.size += size
		o.counters = append(o.counters, set)
	}
}

// newOffered returns the parts of a device that are kept. Amounts that are none are omitted and
// counted.
func newOffered(d *device, rejected driver.Rejections) offered {
	capacities, bad := manifest.Amounts(d.driver, d.Capacity, func(c capacity) resource.Quantity { return c.Value })
	rejected.Add(driver.ReasonMalformedCapacity, bad)
	out := offered{name: d.Name, entry: driver.Entry{
		Hardware: describe(*d), Capacity: capacities, Shareable: ptr.Deref(d.AllowMultipleAllocations, false),
		Conditional: len(d.BindingConditions) > 0, Health: healthOfAttributes(d.attributes),
	}}
	if out.entry.Shareable {
		out.entry.Policies = d.policies(rejected)
	}
	for _, c := range d.ConsumesCounters {
		out.consumes = append(out.consumes, newCounters(d.driver, c.CounterSet, c.Counters, rejected))
	}
	for _, t := range d.Taints {
		out.entry.Taints = append(out.entry.Taints, newTaint(t, ""))
	}
	if h := &out.entry.Hardware; h.Kind == driver.KindPartition && h.Vendor == "nvidia" {
		out.slices = nvidia.ComputeSlices(h.Profile)
		out.pci = d.attributes.pci(standardPCIBusID)
	}
	return out
}

// policies returns the request policies of the capacities, sorted by name. One with an amount that
// is none is counted as a malformed capacity, and allows no amount.
func (d *device) policies(rejected driver.Rejections) []driver.RequestPolicy {
	var out []driver.RequestPolicy
	for name, c := range d.Capacity {
		bare, counts := manifest.Resource(d.driver, string(name), d.Capacity)
		if c.RequestPolicy == nil || !counts || !manifest.ValidName(bare) {
			continue
		}
		p, malformed := driver.RequestPolicy{Resource: bare}, false
		amount := func(of *resource.Quantity) float64 {
			value, ok := manifest.Amount(ptr.Deref(of, resource.Quantity{}))
			malformed = malformed || !ok
			return value
		}
		for i := range c.RequestPolicy.ValidValues {
			p.Values = append(p.Values, amount(&c.RequestPolicy.ValidValues[i]))
		}
		slices.Sort(p.Values)
		if r := c.RequestPolicy.ValidRange; r != nil {
			p.Min, p.Max, p.Step = amount(r.Min), amount(r.Max), amount(r.Step)
		}
		if malformed {
			rejected.Add(driver.ReasonMalformedCapacity, 1)
			p = driver.RequestPolicy{Resource: bare, Values: []float64{}}
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b driver.RequestPolicy) int { return strings.Compare(a.Resource, b.Resource) })
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

// decodeDevice decodes a device of the driver. If it is malformed, it counts it in rejected and
// returns false.
func decodeDevice(driverName string, raw json.RawMessage, rejected driver.Rejections) (device, bool) {
	d := device{driver: driverName}
	if json.Unmarshal(raw, &d) != nil || !manifest.ValidName(d.Name) {
		rejected.Add(driver.ReasonMalformedDevice, 1)
		return device{}, false
	}
	if name := d.Name; d.Basic != nil {
		d.body = *d.Basic
		d.Name = name
	}
	d.attributes = ownAttributes(driverName, d.Attributes)
	return d, true
}

// nodeSelection selects the nodes of a slice or of a device.
type nodeSelection struct {
	name     string
	selector *corev1.NodeSelector
	all      bool
}

func newNodeSelection(name *string, selector *corev1.NodeSelector, all *bool) nodeSelection {
	return nodeSelection{ptr.Deref(name, ""), selector, ptr.Deref(all, false)}
}

// on reports whether a node is selected. known is false if that depends on its labels.
func (s nodeSelection) on(node string) (on, known bool) {
	if s.all || s.name == node {
		return true, true
	}
	known = true
	if s.selector != nil {
		for _, term := range s.selector.NodeSelectorTerms {
			switch matches, ok := termMatches(term, node); {
			case matches:
				return true, true
			case !ok:
				known = false
			}
		}
	}
	return false, known
}

// many reports whether the selection may include more than one node.
func (s nodeSelection) many() bool {
	if s.all || s.selector == nil {
		return s.all
	}
	terms := s.selector.NodeSelectorTerms
	return len(terms) != 1 || !slices.ContainsFunc(terms[0].MatchFields, func(f corev1.NodeSelectorRequirement) bool {
		return f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1
	})
}

// here reports whether the selection includes a node; "": any. If that is unknown, it counts the
// devices in rejected.
func (s nodeSelection) here(node string, devices int, rejected driver.Rejections) bool {
	if node == "" {
		return true
	}
	on, known := s.on(node)
	if !known {
		rejected.Add(driver.ReasonNodeSelector, devices)
	}
	return on
}

// termMatches evaluates a term: all of its requirements must hold, and a term without requirements
// matches no node. The API supports only the field metadata.name. The labels of nodes are unknown.
func termMatches(term corev1.NodeSelectorTerm, node string) (matches, known bool) {
	for _, field := range term.MatchFields {
		in := slices.Contains(field.Values, node)
		if field.Key != "metadata.name" || in != (field.Operator == corev1.NodeSelectorOpIn) {
			return false, true
		}
	}
	if len(term.MatchExpressions) > 0 {
		return false, false
	}
	return len(term.MatchFields) > 0, true
}
