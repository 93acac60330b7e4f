package inventory

import (
	"encoding/json"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
)

// The types below are the parts of ResourceSliceSpec that say something of a device, in the JSON
// form that v1, v1beta2 v1beta1 and v1alpha3 share. They hold devices, attributes and quantities
// raw, so that each can be malformed by itself, which the types of k8s.io/api don't allow: they
// fail as a whole.

// slice is a ResourceSlice's spec.
type slice struct {
	Driver string `json:"driver"`
	Pool   struct {
		Name       string `json:"name"`
		Generation int64  `json:"generation"`
		Slices     int64  `json:"resourceSliceCount"`
	} `json:"pool"`
	nodeSelection

	PerDeviceNodeSelection bool              `json:"perDeviceNodeSelection"`
	SharedCounters         []json.RawMessage `json:"sharedCounters"`
	Devices                []json.RawMessage `json:"devices"`
}

// wireDevice is a device as v1 and v1beta2 write it. In v1beta1 and v1alpha3 all but the name is
// nested in basic.
type wireDevice struct {
	Name string `json:"name"`
	wireBody
	Basic *wireBody `json:"basic"`
}

type wireBody struct {
	nodeSelection

	Attributes               map[string]json.RawMessage `json:"attributes"`
	Capacity                 map[string]json.RawMessage `json:"capacity"`
	Taints                   []json.RawMessage          `json:"taints"`
	ConsumesCounters         []json.RawMessage          `json:"consumesCounters"`
	AllowMultipleAllocations bool                       `json:"allowMultipleAllocations"`
}

// Slice is a ResourceSlice of one of the versions, decoded as far as is needed to see whom it
// concerns.
type Slice struct{ spec slice }

// DecodeSlice decodes a ResourceSlice; false: it is malformed, or names no driver or pool. What is
// wrong with its devices comes to light in [Build].
func DecodeSlice(raw json.RawMessage) (Slice, bool) {
	var object struct {
		Spec slice `json:"spec"`
		classicSlice
	}
	if json.Unmarshal(raw, &object) != nil {
		return Slice{}, false
	}
	s := object.Spec
	if object.DriverName != "" {
		s = object.slice()
	}
	return Slice{s}, manifest.ValidName(s.Driver) && manifest.ValidName(s.Pool.Name)
}

// For returns the slice as far as it concerns a node: one whose devices are all elsewhere is kept
// without them, so that its pool is still known to be complete.
func (s Slice) For(node string) Slice {
	if on, known := s.spec.on(host{name: node}); known && !on && !s.spec.PerDeviceNodeSelection {
		s.spec.Devices = nil
	}
	return s
}

// Driver returns the name of the slice's DRA driver.
func (s Slice) Driver() string { return s.spec.Driver }

// device is a device of a slice, without what differs between the versions of the API.
type device struct {
	driver, name string
	nodeSelection

	attributes attributes
	capacity   []driver.Amount
	consumes   []counters
	taints     []driver.Taint
	shareable  bool
}

// decodeDevice returns a device of the driver, or false and the reason counted.
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
	if max(len(body.Attributes), len(body.Capacity), len(body.ConsumesCounters), len(body.Taints)) > maxAttributes {
		rejected.Add(driver.ReasonTooManyAttributes, 1)
		return device{}, false
	}
	d := device{
		driver: driverName, name: wire.Name,
		nodeSelection: body.nodeSelection, shareable: body.AllowMultipleAllocations,
	}
	d.attributes = decodeAttributes(driverName, body.Attributes, rejected)
	d.capacity = decodeCapacity(driverName, body.Capacity, rejected)
	d.consumes = decodeCounters(driverName, body.ConsumesCounters, rejected)
	d.taints = decodeTaints(body.Taints, rejected)
	return d, true
}

// decodeCapacity returns the capacities; of each only the value counts here, not the policy of
// requests. In v1alpha3 the value is all there is.
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

func decodeTaints(raw []json.RawMessage, rejected driver.Rejections) []driver.Taint {
	var out []driver.Taint
	for _, raw := range raw {
		var taint resourcev1.DeviceTaint
		if json.Unmarshal(raw, &taint) != nil || !validTaint(taint) {
			rejected.Add(driver.ReasonMalformedTaint, 1)
			continue
		}
		out = append(out, driver.Taint{Key: taint.Key, Value: taint.Value, Effect: string(taint.Effect)})
	}
	return out
}

func validTaint(t resourcev1.DeviceTaint) bool {
	effects := []resourcev1.DeviceTaintEffect{
		resourcev1.DeviceTaintEffectNone, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNoExecute,
	}
	return manifest.ValidName(t.Key) && (t.Value == "" || manifest.ValidName(t.Value)) &&
		slices.Contains(effects, t.Effect)
}
