package exposition

import (
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// fact is a series whose value changes only if its labels do.
type fact struct {
	family familyID
	labels *labels
	value  float64
}

// collector is a sink that collects facts.
type collector struct{ facts []fact }

func (c *collector) put(id familyID, labels *labels, value float64, _ age) {
	c.facts = append(c.facts, fact{id, labels, value})
}

// putDistribution does nothing: no fact is a distribution.
func (c *collector) putDistribution(familyID, *labels, *book.Distribution, age) {}

// putFacts passes the facts that put passes. A cache keeps them as long as key is the same.
func putFacts[K comparable](
	e *emission, in func(*labelCache) *sequence[K, []fact], key K, put func(to *emission),
) {
	if e.cache == nil {
		put(e)
		return
	}
	kept := in(e.cache)
	facts := kept.find(key)
	if facts == nil {
		c, to := &collector{}, *e
		to.sink, to.collecting = c, true
		put(&to)
		facts = kept.add(key, c.facts)
	}
	for i := range *facts {
		f := &(*facts)[i]
		e.gauge(f.family, f.labels, f.value)
	}
}

// infos passes the series that identify claims and pods.
func (e *emission) infos(s *Snapshot) {
	for i := range s.ClaimInfos {
		c := &s.ClaimInfos[i]
		putFacts(e, (*labelCache).claimFacts, claimKeyOf(c), func(to *emission) { to.claimInfo(c) })
	}
	if !e.on(famPodInfo) {
		return
	}
	for i := range s.PodInfos {
		p := &s.PodInfos[i]
		putFacts(e, (*labelCache).podFacts, *p, func(to *emission) { to.podInfo(p) })
	}
}

// claimKey has all fields of a [book.ClaimInfo]. Its labels do not change.
type claimKey struct {
	podresources.Claim
	uid         string
	allocatedAt time.Time
	labels      slice[string]
	ended       bool
}

func claimKeyOf(c *book.ClaimInfo) claimKey {
	return claimKey{c.Claim, c.UID, c.AllocatedAt, sliceOf(c.Labels), c.Ended}
}

// slice identifies a slice with immutable elements.
type slice[T any] struct {
	first *T
	len   int
}

func sliceOf[T any](s []T) slice[T] {
	if len(s) == 0 {
		return slice[T]{}
	}
	return slice[T]{&s[0], len(s)}
}

func (e *emission) claimInfo(c *book.ClaimInfo) {
	name := e.pairs("namespace", c.Namespace, "resourceclaim_name", c.Name)
	e.gauge(famClaimInfo, e.with(e.with(name, "uid", c.UID), c.Labels...), 1)
	if !c.AllocatedAt.IsZero() && !c.Ended {
		e.gauge(famClaimAllocatedAt, name, unix(c.AllocatedAt))
	}
}

func (e *emission) podInfo(p *book.PodInfo) {
	if p.Young {
		return
	}
	e.gauge(famPodInfo, e.podLabels(p), 1)
	if p.Topology != (join.Topology{}) && e.on(famPodTopology) {
		e.gauge(famPodTopology, e.pairs("namespace", p.Namespace, "pod", p.Name, "closest", string(p.Topology.Closest),
			"farthest", string(p.Topology.Farthest)), 1)
	}
}

// podLabels returns the labels of dra_pod_info.
func (e *emission) podLabels(p *book.PodInfo) *labels {
	var meta podresources.PodMeta
	if p.Meta != nil {
		meta = *p.Meta
	}
	row := e.pairs(
		"namespace", p.Namespace, "pod", p.Name, "uid", p.UID, "created_by_kind", meta.OwnerKind, "created_by_name",
		meta.OwnerName, "workload_kind", meta.WorkloadKind, "workload_name", meta.WorkloadName, "queue", meta.Queue)
	return e.with(row, meta.Labels...)
}

// shares passes the holders of the device.
func (e *emission) shares(d *book.Device) {
	for i := range d.Shares {
		s := &d.Shares[i]
		putFacts(e, (*labelCache).shareFacts, e.shareKey(d, s), func(to *emission) { to.share(d, s) })
	}
}

// shareKey has everything that the facts of a share depend on. The elements of slices and the
// targets of pointers are immutable.
type shareKey struct {
	device      *driver.ID
	claim       podresources.Claim
	share       string
	request     string
	class       string
	attribution join.Attribution // of the device
	admin       bool
	byProcess   bool
	state       podresources.ClaimState
	holder      podresources.Holder // the first one
	holders     slice[podresources.Holder]
	young       string // has a character for each holder: whether it is young
	consumed    slice[driver.Amount]
	conditions  slice[podresources.Condition]
	network     *podresources.Network
}

func (e *emission) shareKey(d *book.Device, s *join.Share) shareKey {
	k := shareKey{
		device: d.Key, claim: s.Claim, share: s.ShareID, request: s.Request, class: s.DeviceClass,
		attribution: d.Attribution, admin: s.Admin, byProcess: s.ByProcess, state: s.State,
		consumed: sliceOf(s.Consumed), conditions: sliceOf(s.Conditions), network: s.Network,
	}
	if len(s.Holders) > 0 {
		k.holder, k.holders = s.Holders[0], sliceOf(s.Holders[1:])
	}
	if len(e.young) > 0 {
		for i := range s.Holders {
			if e.young[s.Holders[i].Pod] {
				k.young += strconv.Itoa(i) + ","
			}
		}
	}
	return k
}

func (e *emission) share(d *book.Device, s *join.Share) {
	if e.on(famPodClaimInfo) {
		e.holders(d, s)
	}
	if s.ByPlugin() {
		return
	}
	attribution := d.Attribution
	if s.Admin {
		attribution = join.AttributionNone
	}
	base := e.pairs("namespace", s.Claim.Namespace, "resourceclaim_name", s.Claim.Name,
		"driver", d.ID.Driver, "pool", d.ID.Pool, "device", d.ID.Device, "share_id", s.ShareID)
	e.gauge(famClaimDeviceInfo, e.with(base, "request", s.Request, "device_class", s.DeviceClass,
		"admin_access", strconv.FormatBool(s.Admin), "attribution", string(attribution), "state", s.State.String()), 1)
	for _, c := range s.Consumed {
		e.gauge(famClaimConsumedCapacity, e.with(base, "resource", c.Resource), c.Value)
	}
	for _, c := range s.Conditions {
		e.gauge(famClaimCondition, e.with(base, "type", c.Type, "status", c.Status), 1)
	}
	if n := s.Network; n != nil {
		for _, ip := range n.Addresses() {
			e.gauge(famClaimNetwork,
				e.with(base, "interface", n.Interface, "ip", ip, "hardware_address", n.HardwareAddress), 1)
		}
	}
}

func (e *emission) holders(d *book.Device, s *join.Share) {
	among := join.AttributionEqual
	switch {
	case s.Admin:
		among = join.AttributionNone
	case s.ByPlugin(): // no claim: the pod has the part
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
		e.gauge(famPodClaimInfo, e.pairs(
			"namespace", h.Namespace, "pod", h.Name, "container", h.Container, "claim_name", h.ClaimName,
			"resourceclaim_name", s.Claim.Name, "driver", d.ID.Driver, "pool", d.ID.Pool, "device", d.ID.Device,
			"share_id", s.ShareID, "request", s.Request, "attribution", string(among)), 1)
	}
}
