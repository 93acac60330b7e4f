package exporter

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// sink takes the series of a snapshot. born is zero for gauges; shown is when a counter was first exported.
type sink interface {
	put(id familyID, labels *labels, value float64, born, shown time.Time)
}

// emission walks a snapshot for a sink.
type emission struct {
	sink
	cache *labelCache // nil: the sink needs no labels, and none are made
}

// walk puts every series of the snapshot into the emission's sink. What is dropped is left to the sink.
func (s *Snapshot) walk(e emission) {
	gaps := map[unresolved]int{}
	for i := range s.Devices {
		d := &s.Devices[i]
		e.device(d)
		if d.Gap != GapNone {
			gaps[unresolved{d.ID.Driver, d.Gap}]++
		}
	}
	for i := range s.Claims {
		e.holder(&s.Claims[i], famClaimQuantity, famClaimAllocated, famClaimShare)
		if active := s.Claims[i].LastActive; !active.IsZero() {
			e.gauge(famClaimLastActive, s.Claims[i].labels, unix(active))
		}
	}
	for i := range s.Pods {
		e.holder(&s.Pods[i], famPodQuantity, famPodAllocated, famPodShare)
	}
	e.infos(s)
	for _, u := range slices.SortedFunc(maps.Keys(gaps), unresolved.compare) {
		e.gauge(famUnresolved, e.pairs("driver", u.driver, "reason", string(u.gap)), float64(gaps[u]))
	}
	e.gauge(famSnapshotTime, nil, unix(s.Time))
	e.gauge(famSeries, nil, float64(s.Series))
	e.gauge(famSeriesDropped, nil, float64(s.Dropped))
}

// unresolved are devices without telemetry that are counted together.
type unresolved struct {
	driver string
	gap    Gap
}

func (u unresolved) compare(other unresolved) int {
	return cmp.Or(strings.Compare(u.driver, other.driver), cmp.Compare(u.gap, other.gap))
}

func (e emission) pairs(namesAndValues ...string) *labels {
	return e.with(nil, namesAndValues...)
}

func (e emission) with(base *labels, more ...string) *labels {
	if e.cache == nil {
		return nil
	}
	return e.cache.with(base, more...)
}

func (e emission) gauge(id familyID, labels *labels, value float64) {
	e.put(id, labels, value, time.Time{}, time.Time{})
}

func (e emission) device(d *DeviceSnapshot) {
	e.gauge(famDeviceInfo, e.infoLabels(d), 1)
	if d.Up != UpUnknown {
		e.gauge(famDeviceUp, d.labels, float64(d.Up))
	}
	e.gauge(famDeviceAllocations, d.labels, float64(d.Allocations()))
	e.put(famDeviceAllocated, d.labels, d.Allocated, d.Born, d.Born)
	for _, t := range d.Entry.Taints {
		e.gauge(famDeviceTainted, e.with(d.labels, "key", t.Key, "value", t.Value, "effect", t.Effect), 1)
	}
	if !d.LastError.IsZero() {
		e.gauge(famDeviceLastError, d.labels, unix(d.LastError))
	}
	for _, c := range d.Entry.Capacity {
		e.gauge(famDeviceQuantity+familyID(driver.Capacity), e.with(d.labels, "resource", c.Resource), c.Value)
	}
	e.deviceValues(d)
	for i := range d.Unattributed {
		e.value(famUnattributedQuantity, &d.Unattributed[i])
	}
	e.shares(d)
}

func (e emission) deviceValues(d *DeviceSnapshot) {
	type origin struct {
		quantity driver.Quantity
		source   string
	}
	var seen origin
	for i := range d.Values {
		v := &d.Values[i]
		switch v.Quantity {
		case driver.Health:
			if i == 0 || d.Values[i-1].Quantity != driver.Health {
				e.health(d, d.Values[i:])
			}
		case driver.Capacity:
			if !slices.ContainsFunc(d.Entry.Capacity, func(a driver.Amount) bool { return a.Resource == v.Labels[0] }) {
				e.value(famDeviceQuantity, v)
			}
		default:
			e.value(famDeviceQuantity, v)
		}
		if o := (origin{v.Quantity, v.Source}); i == 0 || o != seen {
			if !slices.ContainsFunc(d.Values[:i], func(b Value) bool { return b.Quantity == o.quantity && b.Source == o.source }) {
				e.gauge(famDeviceQuantitySource, e.with(d.labels, "quantity", v.Quantity.String(), "source", v.Source), 1)
			}
			seen = o
		}
	}
}

// health puts all statuses, of which the present one is 1. Of several that a source says are present the worst is
// believed. The values begin with those of health, which are sorted by status: healthy, unhealthy, unknown.
func (e emission) health(d *DeviceSnapshot, values []Value) {
	present := ""
	for _, v := range values {
		if v.Quantity == driver.Health && v.Value > 0 && present != "unhealthy" {
			present = v.Labels[0]
		}
	}
	if present == "" {
		return
	}
	for _, status := range []string{"healthy", "unhealthy", "unknown"} {
		is := 0.0
		if status == present {
			is = 1
		}
		e.gauge(famDeviceQuantity+familyID(driver.Health), e.with(d.labels, "status", status), is)
	}
}

func (e emission) value(base familyID, v *Value) {
	e.put(base+familyID(v.Quantity), v.labels, v.Value, v.Born, v.shown)
}

// shares puts who holds the device now.
func (e emission) shares(d *DeviceSnapshot) {
	for i := range d.Shares {
		s := &d.Shares[i]
		e.holders(d, s)
		if s.ByPlugin() {
			continue
		}
		attribution := d.Attribution
		if s.Admin {
			attribution = AttributionNone
		}
		claim := func(more ...string) *labels {
			if e.cache == nil {
				return nil
			}
			return e.pairs(append([]string{
				"namespace", s.Claim.Namespace, "resourceclaim_name", s.Claim.Name,
				"driver", d.ID.Driver, "pool", d.ID.Pool, "device", d.ID.Device, "share_id", s.ShareID,
			}, more...)...)
		}
		e.gauge(famClaimDeviceInfo, claim("request", s.Request, "device_class", s.DeviceClass,
			"admin_access", strconv.FormatBool(s.Admin), "attribution", string(attribution)), 1)
		for _, c := range s.Consumed {
			e.gauge(famClaimConsumedCapacity, claim("resource", c.Resource), c.Value)
		}
		for _, c := range s.Conditions {
			e.gauge(famClaimCondition, claim("type", c.Type, "status", c.Status), 1)
		}
		if n := s.Network; n != nil {
			for _, ip := range n.Addresses() {
				e.gauge(famClaimNetwork, claim("interface", n.Interface, "ip", ip, "hardware_address", n.HardwareAddress), 1)
			}
		}
	}
}

func (e emission) holders(d *DeviceSnapshot, s *Share) {
	among := AttributionEqual
	switch {
	case s.Admin:
		among = AttributionNone
	case s.ByPlugin(): // without a claim, its part is the pod's
		among = d.Attribution
	case len(s.Pods) == 1:
		among = AttributionExclusive
	case s.ByProcess:
		among = AttributionProcess
	}
	var last podresources.Holder
	for i, h := range s.Holders {
		if i > 0 && last.Pod == h.Pod && last.Container == h.Container && last.ClaimName == h.ClaimName {
			continue // another UID of the same name: one row
		}
		last = h
		e.gauge(famPodClaimInfo, e.pairs(
			"namespace", h.Namespace, "pod", h.Name, "container", h.Container, "claim_name", h.ClaimName,
			"resourceclaim_name", s.Claim.Name, "driver", d.ID.Driver, "pool", d.ID.Pool, "device", d.ID.Device,
			"share_id", s.ShareID, "request", s.Request, "attribution", string(among)), 1)
	}
}

func (e emission) holder(h *HolderSnapshot, quantity, allocated, share familyID) {
	for i := range h.Values {
		e.value(quantity, &h.Values[i])
	}
	e.put(allocated, h.labels, h.Allocated, h.Born, h.Born)
	e.put(share, h.labels, h.Share, h.Born, h.Born)
}

func (e emission) infos(s *Snapshot) {
	for i := range s.ClaimInfos {
		c := &s.ClaimInfos[i]
		e.gauge(famClaimInfo, e.pairs(append([]string{"namespace", c.Namespace, "resourceclaim_name", c.Name, "uid", c.UID}, c.Labels...)...), 1)
		if !c.AllocatedAt.IsZero() && !c.Ended {
			e.gauge(famClaimAllocatedAt, e.pairs("namespace", c.Namespace, "resourceclaim_name", c.Name), unix(c.AllocatedAt))
		}
	}
	for i := range s.PodInfos {
		p := &s.PodInfos[i]
		var meta podresources.PodMeta
		if p.Meta != nil {
			meta = *p.Meta
		}
		e.gauge(famPodInfo, e.pairs(append([]string{
			"namespace", p.Namespace, "pod", p.Name, "uid", p.UID, "created_by_kind", meta.OwnerKind, "created_by_name", meta.OwnerName,
		}, meta.Labels...)...), 1)
	}
}

func (e emission) infoLabels(d *DeviceSnapshot) *labels {
	h := &d.Entry.Hardware
	return e.with(d.labels, "vendor", h.Vendor, "model", h.Model, "uuid", h.UUID, "pci_bus_id", h.PCI,
		"parent", d.Parent, "numa_node", h.NUMANode, "driver_version", h.DriverVersion)
}

// Allocations is the number of claim shares that hold the device, without admin access.
func (d *DeviceSnapshot) Allocations() int {
	n := 0
	for i := range d.Shares {
		if !d.Shares[i].Admin {
			n++
		}
	}
	return n
}

func unix(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
