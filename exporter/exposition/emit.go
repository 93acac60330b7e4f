package exposition

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// sink receives the series of a snapshot. Only counters have an age.
type sink interface {
	put(id familyID, labels *labels, value float64, a age)
	putDistribution(id familyID, labels *labels, d *book.Distribution, a age)
}

// emission walks over a snapshot for a sink.
type emission struct {
	sink
	families *[numFamilies]Family
	specs    driver.Catalogue
	cache    *labelCache // nil: the sink needs no labels, and gets none

	young map[podresources.Pod]bool  // pods without series of their own
	sole  map[driver.ID]*book.Device // devices of one claim alone

	allSources bool // those of measured quantities, too
	collecting bool // the walk collects facts, whose labels are not cached
}

// on reports whether a family is exported.
func (e *emission) on(id familyID) bool { return !e.families[id].off }

// walk passes every series of the chosen groups to the sink, including those that the limit drops.
func (s *Snapshot) walk(e *emission) {
	missing := map[[2]string]int{} // by driver and reason
	e.young, e.sole = youngPods(s.PodInfos), map[driver.ID]*book.Device{}
	states := s.States(neverQuiet)
	for i := range s.Devices {
		d := &s.Devices[i]
		e.device(d, states[i])
		if d.Attribution == join.AttributionExclusive {
			e.sole[d.ID] = d
		}
		if d.Missing != join.MissingNone {
			missing[[2]string{d.ID.Driver, string(d.Missing)}]++
		}
	}
	for i := range s.Claims {
		e.claim(&s.Claims[i], s)
	}
	for i := range s.Pods {
		e.pod(&s.Pods[i], s.Time)
	}
	e.infos(s)
	for i := range s.Lives {
		e.lives(&s.Lives[i])
	}
	kinds := slices.AppendSeq(make([][2]string, 0, len(missing)), maps.Keys(missing))
	slices.SortFunc(kinds, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	for _, of := range kinds {
		e.gauge(famUnresolved, e.pairs("driver", of[0], "reason", of[1]), float64(missing[of]))
	}
	e.gauge(famSnapshotTime, nil, unix(s.Time))
	e.gauge(famSeries, nil, float64(s.Series))
	e.gauge(famSeriesDropped, nil, float64(s.Dropped))
}

// lives passes the durations between states of a driver's claims.
func (e *emission) lives(d *book.DriverLives) {
	row := e.pairs("driver", d.Driver)
	put := func(id familyID, of *book.Durations) {
		if of.Shown.IsZero() || !e.on(id) {
			return
		}
		view := distribution.ViewOf(&of.Histogram)
		e.putDistribution(id, row, &book.Distribution{View: view}, e.cache.age(d.Born, of.Shown))
	}
	put(famDriverPreparation, &d.Preparation)
	put(famDriverFirstActivity, &d.FirstActivity)
}

// youngPods returns the young pods, nil if there are none.
func youngPods(infos []book.PodInfo) map[podresources.Pod]bool {
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

func (e *emission) claim(h *book.Holder, s *Snapshot) {
	claim := e.cache.holder("resourceclaim_name", h)
	defer claim.end()
	e.holder(h, claim, famClaimQuantity, famClaimAllocated, famClaimShare)
	if m := h.Metrics(); m.Used >= 0 {
		e.counter(famClaimUsed, claim, m.Used, m.Born, driver.Later(m.Born, m.Shown))
	}
	e.ofDevice(h, claim)
	base := claim.base()
	if !h.LastError.IsZero() && e.on(famClaimLastError) {
		e.gauge(famClaimLastError, base, unixPast(h.LastError, s.Time))
	}
	if active := h.LastActive; !active.IsZero() {
		e.gauge(famClaimLastActive, base, unixPast(active, s.Time))
	}
	if v, judged := s.Stalled[h.HolderKey]; judged {
		e.stalled(base, &v)
	}
	for _, i := range s.Incidents[h.HolderKey] {
		of := e.with(base, "kind", i.Kind)
		e.gauge(famClaimIncidentOpen, of, 1)
		e.gauge(famClaimIncidentOnset, of, unixPast(i.Onset, s.Time))
	}
	e.distributions(h, claim)
	if h.Advice != nil && h.Ended.IsZero() && e.on(famClaimFit) {
		e.fit(base, h.Advice)
	}
}

// ofDevice passes the device's values that are never divided, if only this claim holds the device.
func (e *emission) ofDevice(h *book.Holder, claim *owner) {
	if !h.Ended.IsZero() {
		return
	}
	d := e.sole[h.Device]
	if d == nil {
		return
	}
	for i := range d.Values {
		v := &d.Values[i]
		if slices.Contains(e.specs.Spec(v.Quantity).SoleLabels, v.Labels[0]) {
			e.value(famClaimQuantity, claim, v, never)
		}
	}
}

// stalled passes whether a claim is stalled, or why that is unknown. It omits shared devices:
// dra_claim_device_info has a label for them, and many claims may share one.
func (e *emission) stalled(base *labels, v *stall.Verdict) {
	if v.Quiet != stall.NoQuiet {
		e.gauge(famClaimQuiet, base, v.Quiet.Seconds())
	}
	switch {
	case v.Unknown == stall.Shared:
	case v.Unknown != stall.Known:
		e.gauge(famClaimStalledUnknown, e.with(base, "reason", string(v.Unknown)), 1)
	case v.Stalled == nil:
		e.gauge(famClaimStalled, e.with(base, "reason", ""), 0)
	default:
		e.gauge(famClaimStalled, e.with(base, "reason", v.Why()), 1)
	}
}

// fit passes a claim's needs, and its smallest fit.
func (e *emission) fit(base *labels, a *fit.Advice) {
	if !a.Known() {
		return
	}
	e.gauge(famClaimFit, e.with(base, "resource", "memory"), a.NeededMemory)
	e.gauge(famClaimFit, e.with(base, "resource", "activity"), a.NeededActivity)
	if a.Reason == fit.Advised {
		e.gauge(famClaimFitUnused, e.with(base, "alternative", a.Alternative.Name), a.Unused)
	}
}

func (e *emission) pod(h *book.Holder, now time.Time) {
	if !e.on(famPodShare) { // like everything else about a pod and its device
		return
	}
	pod := e.cache.holder("pod", h)
	defer pod.end()
	e.holder(h, pod, famPodQuantity, famPodAllocated, famPodShare)
	if h.Unclaimed {
		e.unclaimed(h, pod, now)
	}
}

// unclaimed passes what rules add to the claims'.
func (e *emission) unclaimed(h *book.Holder, pod *owner, now time.Time) {
	e.holder(h, pod, famUnclaimedQuantity, famUnclaimedAllocated, famUnclaimedShare)
	if m := h.Metrics(); m.Used >= 0 {
		e.counter(famUnclaimedUsed, pod, m.Used, m.Born, driver.Later(m.Born, m.Shown))
	}
	if !h.LastActive.IsZero() {
		e.gauge(famUnclaimedLastActive, pod.base(), unixPast(h.LastActive, now))
	}
}

func (e *emission) pairs(namesAndValues ...string) *labels {
	return e.with(nil, namesAndValues...)
}

func (e *emission) with(base *labels, more ...string) *labels {
	if e.collecting {
		return base.with(more...)
	}
	return e.cache.with(base, more...)
}

func (e *emission) gauge(id familyID, labels *labels, value float64) {
	e.put(id, labels, value, age{})
}

// counter passes a counter of an owner, if it is exported.
func (e *emission) counter(id familyID, of *owner, value float64, born, shown time.Time) {
	if e.on(id) {
		e.put(id, of.base(), value, e.cache.age(born, shown))
	}
}

func (e *emission) device(d *book.Device, state book.State) {
	device := e.cache.device(d)
	defer device.end()
	base := device.base()
	e.gauge(famDeviceInfo, e.infoLabels(base, d), 1)
	if d.Up != book.UpUnknown {
		e.gauge(famDeviceUp, base, float64(d.Up))
	}
	e.state(base, d, state)
	e.gauge(famDeviceAllocations, base, float64(d.Allocations()))
	e.counter(famDeviceAllocated, device, d.Allocated, d.Born, d.Born)
	if d.Used >= 0 {
		e.counter(famDeviceUsed, device, d.Used, d.Born, d.Born)
	}
	if share := d.Entry.ParentShare; share > 0 {
		e.gauge(famDeviceParentShare, base, share)
	}
	if d.HealthReason != "" {
		e.gauge(famDeviceHealthReason, e.with(base, "reason", reasonLabel(d.HealthReason)), 1)
	}
	e.taints(base, d)
	if !d.LastError.IsZero() {
		e.gauge(famDeviceLastError, base, unix(d.LastError))
	}
	for _, c := range d.Entry.Capacity {
		e.gauge(famDeviceQuantity+familyID(driver.Capacity), e.with(base, "resource", c.Resource), c.Value)
	}
	e.deviceValues(device, d)
	for _, s := range d.Divided {
		e.quantitySource(device, s)
	}
	for i := range d.Unattributed {
		e.value(famUnattributedQuantity, device, &d.Unattributed[i], never)
	}
	e.shares(d)
}

const (
	// maxReason is the maximum length of a reason in a label, in bytes.
	maxReason = 64
	// longNumber is the number of digits from which on a number is not a code, but an address or a
	// count, which would make a new series each time.
	longNumber = 5
)

// reasonLabel turns a message into a label value that rarely changes.
func reasonLabel(message string) string {
	var b strings.Builder
	digits := 0
	for i := 0; i <= len(message); i++ {
		if i < len(message) && message[i] >= '0' && message[i] <= '9' {
			digits++
			continue
		}
		if number := message[i-digits : i]; digits < longNumber {
			b.WriteString(number)
		} else {
			b.WriteByte('#')
		}
		if digits = 0; i < len(message) {
			b.WriteByte(message[i])
		}
	}
	out := b.String()
	if len(out) <= maxReason {
		return out
	}
	return strings.ToValidUTF8(out[:maxReason], "")
}

// taints passes each taint once, even if several rules set it.
func (e *emission) taints(base *labels, d *book.Device) {
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

func (e *emission) deviceValues(device *owner, d *book.Device) {
	type read struct {
		quantity driver.Quantity
		origin   join.Origin
	}
	var seen read
	for i := range d.Values {
		v := &d.Values[i]
		switch v.Quantity {
		case driver.Health:
			if i == 0 || d.Values[i-1].Quantity != driver.Health {
				e.health(device.base(), d.Values[i:])
			}
		case driver.Capacity:
			if !slices.ContainsFunc(d.Entry.Capacity, func(a driver.Amount) bool { return a.Resource == v.Labels[0] }) {
				e.value(famDeviceQuantity, device, v, never)
			}
		default:
			e.value(famDeviceQuantity, device, v, never)
		}
		if o := (read{v.Quantity, v.Origin}); (i == 0 || o != seen) && !e.isFact(v.Quantity) {
			same := func(b book.Value) bool { return b.Quantity == o.quantity && b.Origin == o.origin }
			if !slices.ContainsFunc(d.Values[:i], same) {
				e.quantitySource(device, v.Series)
			}
			seen = o
		}
	}
}

func (e *emission) isFact(q driver.Quantity) bool { return e.specs.Spec(q).Fact }

// quantitySource passes the source of a value. Active time, and a derived quantity, is an integral
// by its definition, and so no estimate.
func (e *emission) quantitySource(device *owner, s *book.Series) {
	if !e.on(famDeviceQuantitySource) {
		return
	}
	defined := s.Origin.Computed == join.Integral &&
		(s.Quantity == driver.ActiveSeconds || e.specs.Spec(s.Quantity).Derived)
	if e.allSources || s.Origin.Computed != 0 && !defined {
		e.gauge(famDeviceQuantitySource, e.cache.source(device, s), 1)
	}
}

// health passes the current status. If a source reports several, it is the worst. values must begin
// with those of health, which are sorted by status: healthy, unhealthy, unknown.
func (e *emission) health(base *labels, values []book.Value) {
	present := ""
	for _, v := range values {
		if v.Quantity == driver.Health && v.Value > 0 && present != "unhealthy" {
			present = v.Labels[0]
		}
	}
	if present != "" {
		e.gauge(famDeviceQuantity+familyID(driver.Health), e.with(base, "status", present), 1)
	}
}

// value passes a value of an owner. shown is when a snapshot first had it, by the clock of
// age.shown.
func (e *emission) value(first familyID, of *owner, v *book.Value, shown int64) {
	s := e.cache.series(of, v.Series, nil)
	if id := first + familyID(s.quantity); e.on(id) {
		e.put(id, s.labels, v.Value, age{s.age.born, max(s.age.shown, shown)})
	}
}

func (e *emission) holder(h *book.Holder, of *owner, quantity, allocated, share familyID) {
	m := h.Metrics()
	matured := e.cache.since(m.Shown)
	for i := range m.Values {
		e.value(quantity, of, &m.Values[i], matured)
	}
	shown := driver.Later(m.Born, m.Shown)
	e.counter(allocated, of, m.Allocated, m.Born, shown)
	e.counter(share, of, m.Share, m.Born, shown)
}

// distributions passes the distributions of a claim.
func (e *emission) distributions(h *book.Holder, claim *owner) {
	for i := range h.Distributions {
		d := &h.Distributions[i]
		id := famClaimDistribution + familyID(d.Quantity)
		if !e.on(id) {
			continue
		}
		s := e.cache.series(claim, d.Series, h)
		e.putDistribution(id, s.labels, d, s.age)
	}
}

func (e *emission) infoLabels(base *labels, d *book.Device) *labels {
	h := &d.Entry.Hardware
	return e.with(base, "vendor", h.Vendor, "model", h.Model, "uuid", h.UUID, "pci_bus_id", h.PCI,
		"parent", d.Parent, "numa_node", h.NUMANode, "driver_version", h.DriverVersion,
		"listed", strconv.FormatBool(!d.Entry.Unlisted), "node_local", nodeLocal(&d.Entry), "profile", h.Profile,
		"serial", h.Serial, "firmware_version", h.FirmwareVersion, "cuda_version", h.CUDAVersion)
}

// nodeLocal returns whether no other node can use the device. Only a slice has this information.
func nodeLocal(e *driver.Entry) string {
	if e.Unlisted && !e.ManyNodes {
		return ""
	}
	return strconv.FormatBool(!e.ManyNodes)
}

// unixPast returns the Unix time of an event before now. If the wall clock was set back meanwhile,
// the event's age is kept, so that the time is in the past by the present wall clock.
func unixPast(t, now time.Time) float64 {
	if t.Round(0).After(now.Round(0)) {
		t = now.Add(t.Sub(now))
	}
	return unix(t)
}

func unix(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// neverQuiet is longer than any device is quiet: rules find idle devices by a longer history.
const neverQuiet = time.Duration(math.MaxInt64)

// state passes the state of a device, as far as rules need to know it.
func (e *emission) state(base *labels, d *book.Device, state book.State) {
	name, reason := string(state), ""
	switch {
	case state == book.StateUnavailable:
		return
	case state == book.StateActive:
		name = "held"
	case state == book.StateUnhealthy:
		reason = unhealthyBy(d)
	case (state == book.StateTainted || state == book.StateFree) && d.Up != book.UpNow:
		reason = "no_telemetry"
	}
	e.gauge(famDeviceState, e.with(base, "state", name, "reason", reason), 1)
}

func unhealthyBy(d *book.Device) string {
	switch {
	case d.Up == book.Down && d.Allocations() > 0:
		return "lost"
	case d.Up == book.Down:
		return "unreadable"
	case d.Held() && d.LinkDown():
		return "link_down"
	default:
		return "reported"
	}
}
