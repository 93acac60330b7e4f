package exposition

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// sink receives the series of a snapshot. born is zero for gauges; shown is when a counter was
// first in a snapshot.
type sink interface {
	put(id familyID, labels *labels, value float64, born, shown time.Time)
	putDistribution(id familyID, labels *labels, d *ledger.Distribution)
}

// emission walks a snapshot for a sink.
type emission struct {
	sink
	families *[numFamilies]Family
	choices  Choices
	specs    driver.Catalogue
	cache    *labelCache // nil: the sink needs no labels

	young map[podresources.Pod]bool // pods that have no series
}

// on reports whether a family is exported.
func (e emission) on(id familyID) bool { return !e.families[id].off }

// walk puts every series of the chosen groups into the sink, including those that the limit drops.
func (s *Snapshot) walk(e emission) {
	missing := map[unresolved]int{}
	e.young = youngPods(s.PodInfos)
	for i := range s.Devices {
		d := &s.Devices[i]
		e.device(d)
		if d.Missing != join.MissingNone {
			missing[unresolved{d.ID.Driver, d.Missing}]++
		}
	}
	for i := range s.Claims {
		e.claim(&s.Claims[i], s)
	}
	for i := range s.Pods {
		e.pod(&s.Pods[i])
	}
	e.infos(s)
	for _, u := range slices.SortedFunc(maps.Keys(missing), unresolved.compare) {
		e.gauge(famUnresolved, e.pairs("driver", u.driver, "reason", string(u.reason)), float64(missing[u]))
	}
	e.gauge(famSnapshotTime, nil, unix(s.Time))
	e.gauge(famSeries, nil, float64(s.Series))
	e.gauge(famSeriesDropped, nil, float64(s.Dropped))
}

// youngPods returns the pods that are young, nil if none is.
func youngPods(infos []ledger.PodInfo) map[podresources.Pod]bool {
	var young map[podresources.Pod]bool
	for i := range infos {
		if infos[i].Young {
			if young == nil {
				young = map[podresources.Pod]bool{}
			}
			young[infos[i].Pod] = true
		}
	}
	return young
}

func (e emission) claim(h *ledger.Holder, s *Snapshot) {
	base := e.holderLabels("resourceclaim_name", h)
	e.holder(h, base, famClaimQuantity, famClaimAllocated, famClaimShare)
	if !h.LastError.IsZero() && e.on(famClaimLastError) {
		e.gauge(famClaimLastError, base, unixPast(h.LastError, s.Time))
	}
	if active := h.LastActive; !active.IsZero() {
		e.gauge(famClaimLastActive, base, unixPast(active, s.Time))
	}
	if reason, known := s.Stalled[h.HolderKey]; known {
		stalled := 0.0
		if reason != "" {
			stalled = 1
		}
		e.gauge(famClaimStalled, e.with(base, "reason", reason), stalled)
	}
	e.distributions(h)
	if h.Advice != nil && e.on(famClaimFit) {
		e.fit(base, h.Advice)
	}
}

// fit puts what a claim needs of what it holds, and what would do.
func (e emission) fit(base *labels, a *fit.Advice) {
	if !a.Known() {
		return
	}
	e.gauge(famClaimFit, e.with(base, "resource", "memory"), a.NeededMemory)
	e.gauge(famClaimFit, e.with(base, "resource", "activity"), a.NeededActivity)
	if a.Reason == fit.Advised {
		e.gauge(famClaimFitUnused, e.with(base, "alternative", a.Alternative.Name), a.Unused)
	}
}

func (e emission) pod(h *ledger.Holder) {
	if !e.on(famPodAllocated) { // as all that is of a pod and its device
		return
	}
	e.holder(h, e.holderLabels("pod", h), famPodQuantity, famPodAllocated, famPodShare)
}

// unresolved is the key by which devices without telemetry are counted.
type unresolved struct {
	driver string
	reason join.MissingReason
}

func (u unresolved) compare(other unresolved) int {
	return cmp.Or(strings.Compare(u.driver, other.driver), cmp.Compare(u.reason, other.reason))
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

// deviceLabels returns the labels that name a device.
func (e emission) deviceLabels(d *ledger.Device) *labels {
	if e.cache == nil {
		return nil
	}
	row := e.cache.devices.find(d.Key)
	if row == nil {
		row = (*labels)(nil).with("driver", d.ID.Driver, "pool", d.ID.Pool, "device", d.ID.Device)
	}
	return e.cache.devices.add(d.Key, row)
}

// holderLabels returns the labels that name a claim or pod, whose name has the given label, and its
// device.
func (e emission) holderLabels(name string, h *ledger.Holder) *labels {
	if e.cache == nil {
		return nil
	}
	row := e.cache.holders.find(h.HolderKey)
	if row == nil {
		id := &h.Device
		row = (*labels)(nil).with(
			"namespace", h.Namespace, name, h.Name, "driver", id.Driver, "pool", id.Pool, "device", id.Device)
	}
	return e.cache.holders.add(h.HolderKey, row)
}

// seriesLabels returns the labels of a series of the device or holder whose labels are base.
func (e emission) seriesLabels(base *labels, s *ledger.Series) *labels {
	if e.cache == nil || len(e.cache.names[s.Quantity]) == 0 {
		return base
	}
	row := e.cache.series.find(s)
	if row == nil {
		var more []string
		for i, name := range e.cache.names[s.Quantity] {
			more = append(more, name, s.Labels[i])
		}
		row = base.with(more...)
	}
	return e.cache.series.add(s, row)
}

func (e emission) gauge(id familyID, labels *labels, value float64) {
	e.put(id, labels, value, time.Time{}, time.Time{})
}

func (e emission) device(d *ledger.Device) {
	base := e.deviceLabels(d)
	e.gauge(famDeviceInfo, e.infoLabels(base, d), 1)
	if h := &d.Entry.Hardware; h.Profile != "" || h.Serial != "" || h.FirmwareVersion != "" || h.CUDAVersion != "" {
		e.gauge(famDeviceHardware, e.with(base, "profile", h.Profile, "serial", h.Serial,
			"firmware_version", h.FirmwareVersion, "cuda_version", h.CUDAVersion), 1)
	}
	if d.Up != ledger.UpUnknown {
		e.gauge(famDeviceUp, base, float64(d.Up))
	}
	e.gauge(famDeviceAllocations, base, float64(d.Allocations()))
	e.put(famDeviceAllocated, base, d.Allocated, d.Born, d.Born)
	if share := d.Entry.ParentShare; share > 0 {
		e.gauge(famDeviceParentShare, base, share)
	}
	e.taints(base, d)
	if !d.LastError.IsZero() {
		e.gauge(famDeviceLastError, base, unix(d.LastError))
	}
	for _, c := range d.Entry.Capacity {
		e.gauge(famDeviceQuantity+familyID(driver.Capacity), e.with(base, "resource", c.Resource), c.Value)
	}
	e.deviceValues(base, d)
	for _, s := range d.Divided {
		e.quantitySource(base, s.Quantity, s.Source)
	}
	for i := range d.Unattributed {
		e.value(famUnattributedQuantity, base, &d.Unattributed[i])
	}
	e.shares(d)
}

// taints shows each taint once, though several rules may set the same one.
func (e emission) taints(base *labels, d *ledger.Device) {
	for i, t := range d.Entry.Taints {
		same := func(b driver.Taint) bool {
			return b.Key == t.Key && b.Value == t.Value && b.Effect == t.Effect && b.Source() == t.Source()
		}
		if slices.ContainsFunc(d.Entry.Taints[:i], same) {
			continue
		}
		row := e.with(base, "key", t.Key, "value", t.Value, "effect", t.Effect, "source", t.Source())
		e.gauge(famDeviceTainted, row, 1)
	}
}

func (e emission) deviceValues(base *labels, d *ledger.Device) {
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
				e.health(base, d.Values[i:])
			}
		case driver.Capacity:
			if !slices.ContainsFunc(d.Entry.Capacity, func(a driver.Amount) bool { return a.Resource == v.Labels[0] }) {
				e.value(famDeviceQuantity, base, v)
			}
		default:
			e.value(famDeviceQuantity, base, v)
		}
		if o := (origin{v.Quantity, v.Source}); (i == 0 || o != seen) && !e.isFact(v.Quantity) {
			same := func(b ledger.Value) bool { return b.Quantity == o.quantity && b.Source == o.source }
			if !slices.ContainsFunc(d.Values[:i], same) {
				e.quantitySource(base, v.Quantity, v.Source)
			}
			seen = o
		}
	}
}

func (e emission) isFact(q driver.Quantity) bool { return e.specs.Spec(q).Fact }

func (e emission) quantitySource(base *labels, q driver.Quantity, source string) {
	if !e.on(famDeviceQuantitySource) || e.choices.Of(GroupQuantitySource) == Estimates && !ledger.Estimated(source) {
		return
	}
	var row *labels
	if e.cache != nil {
		row = e.cache.with(base, "quantity", e.cache.specs.Spec(q).Name, "source", source)
	}
	e.gauge(famDeviceQuantitySource, row, 1)
}

// health puts all statuses; the present one is 1. If a source reports several, the worst is the
// present one. The values begin with those of health, which are sorted by status: healthy,
// unhealthy, unknown.
func (e emission) health(base *labels, values []ledger.Value) {
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
		e.gauge(famDeviceQuantity+familyID(driver.Health), e.with(base, "status", status), is)
	}
}

func (e emission) value(first familyID, base *labels, v *ledger.Value) {
	e.valueSince(first, base, v, v.Shown)
}

// valueSince puts a value that was in no snapshot before shown.
func (e emission) valueSince(first familyID, base *labels, v *ledger.Value, shown time.Time) {
	if !e.on(first + familyID(v.Quantity)) {
		return
	}
	e.put(first+familyID(v.Quantity), e.seriesLabels(base, v.Series), v.Value, v.Born, shown)
}

// shares puts the present holders of the device.
func (e emission) shares(d *ledger.Device) {
	for i := range d.Shares {
		s := &d.Shares[i]
		if e.on(famPodClaimInfo) {
			e.holders(d, s)
		}
		if s.ByPlugin() {
			continue
		}
		attribution := d.Attribution
		if s.Admin {
			attribution = join.AttributionNone
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
			"admin_access", strconv.FormatBool(s.Admin), "attribution", string(attribution), "state", s.State.String()), 1)
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

func (e emission) holders(d *ledger.Device, s *join.Share) {
	among := join.AttributionEqual
	switch {
	case s.Admin:
		among = join.AttributionNone
	case s.ByPlugin(): // no claim: its part is the pod's
		among = d.Attribution
	case len(s.Pods) == 1:
		among = join.AttributionExclusive
	case s.ByProcess:
		among = join.AttributionProcess
	}
	var last podresources.Holder
	for i, h := range s.Holders {
		if i > 0 && last.Pod == h.Pod && last.Container == h.Container && last.ClaimName == h.ClaimName {
			continue // another UID of the same name: one row
		}
		last = h
		if e.young[h.Pod] {
			continue
		}
		var row *labels
		if e.cache != nil {
			row = e.cache.with(nil,
				"namespace", h.Namespace, "pod", h.Name, "container", h.Container, "claim_name", h.ClaimName,
				"resourceclaim_name", s.Claim.Name, "driver", d.ID.Driver, "pool", d.ID.Pool, "device", d.ID.Device,
				"share_id", s.ShareID, "request", s.Request, "attribution", string(among))
		}
		e.gauge(famPodClaimInfo, row, 1)
	}
}

func (e emission) holder(h *ledger.Holder, base *labels, quantity, allocated, share familyID) {
	for i := range h.Values {
		v := &h.Values[i]
		e.valueSince(quantity, base, v, later(v.Shown, h.Shown))
	}
	shown := later(h.Born, h.Shown)
	e.put(allocated, base, h.Allocated, h.Born, shown)
	e.put(share, base, h.Share, h.Born, shown)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (e emission) distributions(h *ledger.Holder) {
	for i := range h.Distributions {
		d := &h.Distributions[i]
		if id := famClaimDistribution + familyID(d.Quantity); e.on(id) {
			e.putDistribution(id, e.distributionLabels(h, d.Series), d)
		}
	}
}

// distributionLabels returns the labels of a distribution of a claim, of which the row is.
func (e emission) distributionLabels(h *ledger.Holder, s *ledger.Series) *labels {
	if e.cache == nil {
		return nil
	}
	row := e.cache.series.find(s)
	if row == nil {
		row = e.pairs("namespace", h.Namespace, "resourceclaim_name", h.Name, "driver", h.Device.Driver)
	}
	return e.cache.series.add(s, row)
}

func (e emission) infos(s *Snapshot) {
	for i := range s.ClaimInfos {
		c := &s.ClaimInfos[i]
		e.gauge(famClaimInfo, e.claimInfo(c), 1)
		if !c.AllocatedAt.IsZero() && !c.Ended {
			e.gauge(famClaimAllocatedAt, e.pairs("namespace", c.Namespace, "resourceclaim_name", c.Name), unix(c.AllocatedAt))
		}
	}
	if !e.on(famPodInfo) {
		return
	}
	for i := range s.PodInfos {
		p := &s.PodInfos[i]
		if p.Young {
			continue
		}
		e.gauge(famPodInfo, e.podInfo(p), 1)
		if p.Topology != (join.Topology{}) && e.on(famPodTopology) {
			e.gauge(famPodTopology, e.pairs("namespace", p.Namespace, "pod", p.Name, "closest", string(p.Topology.Closest),
				"farthest", string(p.Topology.Farthest)), 1)
		}
	}
}

// claimInfo returns the labels of dra_claim_info.
func (e emission) claimInfo(c *ledger.ClaimInfo) *labels {
	if e.cache == nil {
		return nil
	}
	return e.pairs(
		append([]string{"namespace", c.Namespace, "resourceclaim_name", c.Name, "uid", c.UID}, c.Labels...)...,
	)
}

// podInfo returns the labels of dra_pod_info.
func (e emission) podInfo(p *ledger.PodInfo) *labels {
	if e.cache == nil {
		return nil
	}
	var meta podresources.PodMeta
	if p.Meta != nil {
		meta = *p.Meta
	}
	return e.pairs(append([]string{
		"namespace", p.Namespace, "pod", p.Name, "uid", p.UID, "created_by_kind", meta.OwnerKind, "created_by_name",
		meta.OwnerName, "workload_kind", meta.WorkloadKind, "workload_name", meta.WorkloadName, "queue", meta.Queue,
	}, meta.Labels...)...)
}

func (e emission) infoLabels(base *labels, d *ledger.Device) *labels {
	if e.cache == nil {
		return nil
	}
	h := &d.Entry.Hardware
	return e.with(base, "vendor", h.Vendor, "model", h.Model, "uuid", h.UUID, "pci_bus_id", h.PCI,
		"parent", d.Parent, "numa_node", h.NUMANode, "driver_version", h.DriverVersion,
		"listed", strconv.FormatBool(!d.Entry.Unlisted), "node_local", nodeLocal(&d.Entry))
}

// nodeLocal returns whether no other node can use the device, which only a slice tells.
func nodeLocal(e *driver.Entry) string {
	if e.Unlisted && !e.ManyNodes {
		return ""
	}
	return strconv.FormatBool(!e.ManyNodes)
}

// unixPast returns the Unix time of what happened before now. If the wall clock went back
// meanwhile, it is as long ago by the present wall clock as it is.
func unixPast(t, now time.Time) float64 {
	if t.Round(0).After(now.Round(0)) {
		t = now.Add(t.Sub(now))
	}
	return unix(t)
}

func unix(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
