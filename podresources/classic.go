package podresources

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Classic DRA is DRA of resource.k8s.io/v1alpha2, with kubelets 1.27 to 1.30. A driver describes
// the devices of a claim only by CDI names of its choice, and the kubelet lists for each driver a
// row without driver, pool and device. This package gives such a device no pool; its driver is the
// vendor of the CDI name, and its name that of the CDI device.

// classNameField is the number of DynamicResource.class_name, which was removed with classic DRA
// (k8s.io/kubelet v0.30 pkg/apis/podresources/v1/api.proto).
const classNameField = 1

// Classic reports whether the device is one of classic DRA.
func (a Allocation) Classic() bool { return a.Device.Pool == "" && !a.ByPlugin() }

// className returns the name of the claim's resource class, "" if the kubelet does not send it.
func className(entry *v1.DynamicResource) string {
	unknown := entry.ProtoReflect().GetUnknown()
	for len(unknown) > 0 {
		number, kind, n := protowire.ConsumeTag(unknown)
		if n < 0 {
			return ""
		}
		unknown = unknown[n:]
		if number == classNameField && kind == protowire.BytesType {
			name, n := protowire.ConsumeString(unknown)
			if n < 0 || checkName(name, maxName, "missing") != "" {
				return ""
			}
			return name
		}
		if n = protowire.ConsumeFieldValue(number, kind, unknown); n < 0 {
			return ""
		}
		unknown = unknown[n:]
	}
	return ""
}

// classic adds the devices of one driver of a claim of classic DRA: one for each CDI name.
func (p *parser) classic(holder Holder, claim Claim, class string, row *v1.ClaimResource) {
	for _, cdi := range row.GetCdiDevices() {
		device, uid, ok := classicDevice(cdi.GetName())
		if reason := checkName(cdi.GetName(), maxCDIName, driver.ReasonMissingCDI); reason != "" || !ok {
			if reason == "" {
				reason = driver.ReasonClassicDRA
			}
			p.reject(reason)
			continue
		}
		if a := p.row(holder, rowKey{claim: claim, device: device}, []*v1.CDIDevice{cdi}); a != nil {
			a.DeviceClass, a.ClaimUID = class, uid
		}
	}
}

// classicDevice returns the device of a CDI name VENDOR/CLASS=NAME, and the UID of the claim if the
// name has it: drivers that write a CDI spec for each claim give its device the class "claim" and
// the claim's UID as name.
func classicDevice(cdi string) (id driver.ID, uid string, ok bool) {
	kind, name, _ := strings.Cut(cdi, "=")
	vendor, class, _ := strings.Cut(kind, "/")
	vendor = strings.TrimPrefix(vendor, "k8s.")
	id = driver.ID{Driver: vendor, Device: name}
	if checkName(vendor, maxDriverName, "missing") != "" || class == "" || checkName(name, maxName, "missing") != "" {
		return id, "", false
	}
	if class == "claim" && isUUID(name) {
		uid = name
	}
	return id, uid, true
}

// isUUID reports whether a name has the form of a UUID, as UIDs have.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		if dash := i == 8 || i == 13 || i == 18 ||
			i == 23; dash != (s[i] == '-') || !dash && strings.IndexByte("0123456789abcdefABCDEF", s[i]) < 0 {
			return false
		}
	}
	return true
}

// Classic has the facts that only claims of classic DRA have (resource.k8s.io/v1alpha2).
type Classic struct {
	Class  string // spec.resourceClassName
	Driver string // the driver that allocated it; empty if several did, or none yet
}

// CompleteClassic adds the claim's facts to a device of classic DRA. alone means that the claim has
// no other device: if the claim's driver publishes slices and one device of these was allocated, it
// is that device.
func (c *ClaimFacts) CompleteClassic(a *Allocation, alone bool) {
	if c.Classic == nil || !a.Classic() {
		return
	}
	if c.Classic.Class != "" {
		a.DeviceClass = c.Classic.Class
	}
	if c.Classic.Driver != "" {
		a.Device.Driver = c.Classic.Driver
	}
	if alone && len(c.Results) == 1 && c.Results[0].Device.Driver == a.Device.Driver {
		a.Device = c.Results[0].Device
	}
}

// ClassicDevices returns how many devices of classic DRA each claim has.
func ClassicDevices(allocations []Allocation) map[Claim]int {
	var n map[Claim]int
	for i := range allocations {
		if allocations[i].Classic() {
			if n == nil {
				n = map[Claim]int{}
			}
			n[allocations[i].Claim]++
		}
	}
	return n
}
