package recorder

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// stalls passes the claims of snapshots to package stall.
type stalls struct {
	judge    *stall.Judge
	claims   []*judged       // of the last snapshot, in its order
	before   []*judged       // of the previous one
	devices  []stall.Reading // by index in the last snapshot
	turn     uint64
	readings []stall.Reading                   // of claims
	verdicts map[*book.HolderKey]stall.Verdict // published, and so never changed
	host     hostReader
}

// hostReader reads what pods do on the host, once a window.
type hostReader struct {
	read  func(uids []string) map[string]podresources.PodWork // nil: it can't be read
	began time.Time                                           // of the last read
}

// judged is a claim on a device, with its part of a workload.
type judged struct {
	key   *book.HolderKey
	group group
	due   uint64 // the turn at which the group is determined again
}

// group is a claim's part of a workload.
type group struct {
	name      string
	pods      []string // UIDs of the claim's pods
	elsewhere bool     // the workload may have ranks on other nodes
}

// regroup is the number of snapshots after which a claim's workload is determined again.
const regroup = 60

func newStalls(config *Config) *stalls {
	return &stalls{judge: stall.New(config.StalledAfter, config.Interval), host: hostReader{read: config.Works}}
}

// observe adds a snapshot. It returns a verdict for each claim and device that can be busy and draw
// power, and whether any of them may differ from that of the previous snapshot.
func (b *stalls) observe(s *book.Snapshot) (verdicts map[*book.HolderKey]stall.Verdict, changed bool) {
	b.read(s)
	b.observeHost(s.Time)
	judged, changed := b.judge.Observe(s.Time, b.readings)
	if !changed && slices.Equal(b.claims, b.before) {
		return b.verdicts, false
	}
	b.verdicts = make(map[*book.HolderKey]stall.Verdict, len(b.claims))
	for i, c := range b.claims {
		if b.readings[i].Unknown != stall.NotJudged {
			b.verdicts[c.key] = judged[i]
		}
	}
	return b.verdicts, true
}

// read makes a reading for each claim that holds a device of the snapshot.
func (b *stalls) read(s *book.Snapshot) {
	b.turn++
	b.before, b.claims = b.claims, b.before[:0]
	b.readings = slices.Grow(b.readings[:0], len(s.Claims))
	b.devices = b.devices[:0]
	for i := range s.Devices {
		b.devices = append(b.devices, readingOf(&s.Devices[i]))
	}
	next := 0
	for i := range s.Claims {
		h := &s.Claims[i]
		at := s.IndexOf(h.Device)
		if !h.Ended.IsZero() || at < 0 {
			continue
		}
		var c *judged
		c, next = claimOf(b.before, h.HolderKey, next)
		if b.turn >= c.due {
			c.group, c.due = groupOf(&s.Devices[at], h), b.turn+regroup
		}
		b.claims, b.readings = append(b.claims, c), append(b.readings, b.devices[at])
		r := &b.readings[len(b.readings)-1]
		r.Key = stall.Key{Namespace: h.Namespace, Claim: h.Name, Device: h.Device, Since: h.Born.Round(0).UTC()}
		r.Group, r.Pods, r.Elsewhere = c.group.name, c.group.pods, c.group.elsewhere
	}
}

// claimOf returns what is known of a claim, and the index after it. Since snapshots have the same
// order, it is at next in those of the previous snapshot, or follows later.
func claimOf(before []*judged, key *book.HolderKey, next int) (*judged, int) {
	if n := slices.IndexFunc(before[next:], func(c *judged) bool { return c.key == key }); n >= 0 {
		return before[next+n], next + n + 1
	}
	return &judged{key: key}, next
}

// observeHost passes what the pods of the readings do on the host, if there is something new.
func (b *stalls) observeHost(now time.Time) {
	if b.host.read == nil {
		return
	}
	var uids []string
	began := b.host.began
	if now.Sub(began) >= b.judge.Window() {
		b.host.began = now
		for i := range b.readings {
			if r := &b.readings[i]; r.Unknown != stall.NotJudged {
				uids = append(uids, r.Pods...)
			}
		}
		slices.Sort(uids)
		uids = slices.Compact(uids)
	}
	work := b.host.read(uids)
	if work == nil {
		return
	}
	values := make(map[string]stall.HostValues, len(work))
	for uid, w := range work {
		v := stall.NoHostValues()
		v[stall.CPU], v[stall.Storage], v[stall.Faults] = w.CPU, w.Storage, w.Faults
		v[stall.HostMemory], v[stall.PodNetwork] = w.Memory, w.Network
		values[uid] = v
	}
	b.judge.ObserveHost(began, values)
}

// suspectAfter is the time without signs of life after which a recording of its start is kept: by
// the time at which the claim is found to be stalled, the ring may have forgotten it.
const suspectAfter = DefaultKeep / 2

// stall returns the claims that have begun to stall since the previous verdicts.
func (r *Recorder) stall(now map[*book.HolderKey]stall.Verdict, s *book.Snapshot) []happening {
	var out []happening
	suspected := r.suspected[:0:0]
	for i := range s.Claims {
		h := &s.Claims[i]
		v, judged := now[h.HolderKey]
		if !judged || v.Stalled == nil && v.For < suspectAfter || r.stalled[h.HolderKey].Stalled != nil {
			continue
		}
		n := s.IndexOf(h.Device)
		suspect := r.suspect(h.HolderKey, &v, &s.Devices[n], s.Time)
		if v.Stalled == nil {
			suspected = append(suspected, suspect)
			continue
		}
		out = append(out, happening{
			kind: ClaimStalled, code: v.Why(), device: &s.Devices[n], at: s.Time, onset: suspect.Onset, chart: suspect.Chart,
			count: 1, claim: h,
		})
	}
	r.suspected, r.stalled = suspected, now
	return out
}

// suspect returns an unconfirmed incident of a claim without signs of life.
func (r *Recorder) suspect(key *book.HolderKey, v *stall.Verdict, of *book.Device, now time.Time) *Incident {
	id := "suspected " + key.Namespace + "/" + key.Name + " " + key.Device.String()
	for _, known := range r.suspected {
		if known.ID == id && known.Onset.After(now.Add(-v.For-2*r.stalls.judge.Window())) {
			return known
		}
	}
	onset := r.ring.fall(of.ID, now.Add(-v.For), r.stalls.judge.Window())
	return &Incident{
		ID: id, Kind: ClaimStalled, Device: of.ID, Onset: onset, Detected: onset, Last: onset,
		parent:  of.Parent,
		Holders: []Holder{{Namespace: key.Namespace, Claim: key.Name, ID: of.ID, Hit: true}},
	}
}

// fall returns when the power of a device fell to its present level. since is the approximate time,
// known to a window. If the power does not show a fall, fall returns since.
func (r *ring) fall(id driver.ID, since time.Time, window time.Duration) time.Time {
	from := since.Add(-window - evidence)
	c := r.cut(from, r.before, func(o *Owner) bool { return o.Kind == OfDevice && o.Device == id },
		func(m *meta) bool { return m.Quantity == driver.Power })
	for _, l := range c.lines {
		watts := c.values(&l)
		before := median(c.times, watts, from, since.Add(-window))
		after := median(c.times, watts, since, r.before)
		if !(after < before) { // either may be NaN
			return since
		}
		for n := len(watts) - 1; n > 0; n-- {
			if watts[n-1] >= (before+after)/2 && c.times[n-1].Before(since.Add(window)) {
				return c.times[n]
			}
		}
	}
	return since
}

// median returns the median of the values between two times, NaN if there are none.
func median(times []time.Time, values []float64, from, to time.Time) float64 {
	var some []float64
	for n, v := range values {
		if !math.IsNaN(v) && !times[n].Before(from) && !times[n].After(to) {
			some = append(some, v)
		}
	}
	if len(some) == 0 {
		return math.NaN()
	}
	slices.Sort(some)
	return some[len(some)/2]
}

// groupOf returns the workload of a claim: that of its first pod, or the pod itself.
func groupOf(d *book.Device, h *book.Holder) group {
	var out group
	for i := range d.Shares {
		s := &d.Shares[i]
		if s.Claim.Name != h.Name || s.Claim.Namespace != h.Namespace {
			continue
		}
		for _, of := range s.Holders {
			if out.name == "" {
				out.name = strings.Join([]string{of.Namespace, "Pod", of.Name}, "/")
				if m := of.Meta; m != nil && m.WorkloadName != "" {
					out.name = strings.Join([]string{of.Namespace, m.WorkloadKind, m.WorkloadName}, "/")
				}
			}
			out.elsewhere = out.elsewhere || of.Meta == nil || !of.Meta.Alone
			if !slices.Contains(out.pods, of.UID) { // an empty one makes the host unknown
				out.pods = append(out.pods, of.UID)
			}
		}
	}
	return out
}

// readingOf returns what the readings of all claims of a device have in common.
func readingOf(d *book.Device) stall.Reading {
	r := stall.Reading{Values: stall.NoValues()}
	clock, highest := math.NaN(), math.NaN()
	for i := range d.Values {
		switch v := &d.Values[i]; v.Quantity {
		case driver.Utilization:
			r.Values[stall.Busy] = v.Value
		case driver.Power:
			r.Values[stall.Power] = v.Value
		case driver.EngineUtilization:
			if s, ok := signalOf(v.Labels[0]); ok {
				r.AtLeast(s, v.Value)
			}
		case driver.IOBytes:
			if s, ok := linkOf(&v.Labels); ok {
				r.Add(s, v.Value)
			}
		case driver.Clock:
			clock = labelOr(v, clock, "sm", "graphics")
		case driver.ClockMax:
			highest = labelOr(v, highest, "sm", "graphics")
		case driver.PowerLimit:
			r.Limit, r.MaxLimit = labelOr(v, r.Limit, "enforced"), labelOr(v, r.MaxLimit, "max")
		case driver.ThrottleActive:
			r.Throttled = r.Throttled || v.Value > 0 && v.Labels[0] != "power"
		}
	}
	r.Values[stall.Clock] = clock / highest
	engines := slices.ContainsFunc([]stall.Signal{stall.Tensor, stall.FP32, stall.SM, stall.Memory}, r.Measured)
	switch busy := r.Measured(stall.Busy); {
	case !busy && !r.Measured(stall.Power) || busy && !r.Measured(stall.Power) && !engines:
		r.Unknown = stall.NotJudged
	case d.Attribution != join.AttributionExclusive: // the activity of each of several claims is unknown
		r.Unknown = stall.Shared
	case d.Parent != "" && !r.Measured(stall.Power):
		r.Unknown = stall.Part
	}
	return r
}

// labelOr returns the value if its first label is one of these, else what was known before.
func labelOr(v *book.Value, before float64, labels ...string) float64 {
	if slices.Contains(labels, v.Labels[0]) {
		return v.Value
	}
	return before
}

// signalOf returns the signal of an engine, false for one that does not tell work from waiting.
func signalOf(engine string) (stall.Signal, bool) {
	switch engine {
	case "tensor":
		return stall.Tensor, true
	case "fp64":
		return stall.FP64, true
	case "fp32":
		return stall.FP32, true
	case "fp16":
		return stall.FP16, true
	case "int":
		return stall.Int, true
	case "sm":
		return stall.SM, true
	case "dram":
		return stall.Memory, true
	case "copy":
		return stall.Copy, true
	case "encoder", "decoder", "jpeg", "ofa", "video", "video_enhance":
		return stall.Media, true
	default: // compute and render are busy with any kernel
		return 0, false
	}
}

// linkOf returns the signal of a link and direction.
func linkOf(labels *driver.Labels) (stall.Signal, bool) {
	switch labels[0] {
	case "pcie":
		return stall.PCIe, true
	case "nvlink", "xgmi":
		return stall.Fabric, true
	case "network", "rdma":
		if labels[1] == "transmit" {
			return stall.Send, true
		}
		return stall.Receive, true
	default:
		return 0, false
	}
}
