package exportertest

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
)

// World is a random history of a node: the answers of its kubelet, its inventory and two sources at
// each tick.
type World struct {
	t       *rapid.T
	Now     time.Time
	Tick    int
	Devices []*simDevice
	allocs  []podresources.Allocation // sorted
	changes []podresources.Change
	stalled bool // the kubelet does not answer
	sources []*simSource
	events  []string // possible events; frequent ones appear more than once
	// Plain: a counter falls only in ways that leave no doubt about what it has counted, by a little
	// or to 0 from a value that it does not reach again. It is set before the sources are added.
	Plain bool

	// Seen is the kubelet's last answer. Signs has the pods and CDI specs that appeared or
	// disappeared.
	Seen     []podresources.Allocation
	Signs    holders.Signs
	dates    Dates
	view     podresources.View // from Seen and Signs
	consumed map[string][]driver.Amount
	uids     map[podresources.Claim]string // of claims; empty: unknown
}

type simDevice struct {
	processes []driver.Process
	id        driver.ID
	uuid      string
	listed    bool
	parent    *simDevice // of a partition
	share     float64    // of the parent; 0: unknown
}

// ofPartitions returns the quantities that partitions measure.
func ofPartitions(q driver.Quantity) bool { return q == driver.Utilization || q == driver.MemoryUsed }

// simSource is a source with series of each device.
type simSource struct {
	name   string
	down   bool
	series []*simSeries
}

type simSeries struct {
	device  *simDevice
	reading driver.Reading
	every   int // number of ticks between refreshes
	rate    float64
	missing bool
}

// Grain is the unit of all times in a history.
const Grain = 50 * time.Millisecond

// NewWorld returns a world with two sources, in which all events are possible.
func NewWorld(t *rapid.T) *World {
	w := NewEmptyWorld(t)
	w.addPartitions()
	w.events = append(w.events, "facts", "device", "source", "stall", "process", "process", "plugin", "plugin")
	w.AddSource("a", driver.Energy, driver.Power, driver.IOBytes, driver.Temperature, driver.NetworkPackets)
	w.AddSource("b", driver.Energy, driver.Utilization, driver.MemoryUsed)
	return w
}

// addPartitions adds partitions to some devices.
func (w *World) addPartitions() {
	for _, d := range w.Devices {
		for i := range rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(w.t, "partitions") {
			w.Devices = append(w.Devices, &simDevice{
				id: jointest.ID(fmt.Sprintf("%s-part-%d", d.id.Device, i)), uuid: fmt.Sprintf("%s-%d", d.uuid, i), listed: true,
				parent: d, share: rapid.SampledFrom([]float64{0, 1. / 7, 0.25, 0.5, 1}).Draw(w.t, "of its parent"),
			})
		}
	}
}

// ParentOf returns the parent of a partition, or the zero ID for a device that is not a partition.
func (w *World) ParentOf(id driver.ID) driver.ID {
	for _, d := range w.Devices {
		if d.id == id && d.parent != nil {
			return d.parent.id
		}
	}
	return driver.ID{}
}

// NewEmptyWorld returns a world of devices without sources, whose kubelet always answers.
func NewEmptyWorld(t *rapid.T) *World {
	w := &World{t: t, Now: jointest.Start(), consumed: map[string][]driver.Amount{}, uids: map[podresources.Claim]string{}}
	w.Signs.Watched = rapid.Bool().Draw(t, "watched")
	w.events = []string{
		"hold", "hold", "hold", "hold", "leave", "leave", "free", "series", "series", "reset", "fall", "rate", "uid",
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "devices") {
		w.Devices = append(
			w.Devices, &simDevice{id: jointest.ID(fmt.Sprintf("gpu-%d", i)), uuid: fmt.Sprintf("GPU-%d", i), listed: true},
		)
	}
	return w
}

// AddSource adds a source that reads the quantities of each device.
func (w *World) AddSource(name string, quantities ...driver.Quantity) {
	s := &simSource{name: name}
	for _, d := range w.Devices {
		for _, q := range quantities {
			if d.parent != nil && !ofPartitions(q) {
				continue
			}
			every := rapid.SampledFrom([]int{1, 1, 2, 5}).Draw(w.t, "every")
			series := &simSeries{device: d, every: every, rate: w.rate(q)}
			series.reading = driver.Reading{Quantity: q, At: w.Now, Value: series.rate}
			if w.Plain {
				series.reading.Value += 10 * series.highest()
			}
			switch q {
			case driver.IOBytes:
				series.reading.Labels = driver.Labels{"pcie", "receive"}
			case driver.NetworkPackets:
				series.reading.Labels = driver.Labels{"receive"}
			case driver.Temperature:
				series.reading.Labels = driver.Labels{"core"}
			case driver.Errors:
				series.reading.Labels = driver.Labels{"xid", "31"}
			case driver.ThrottledSeconds:
				series.reading.Labels = driver.Labels{"thermal"}
			}
			s.series = append(s.series, series)
		}
	}
	w.sources = append(w.sources, s)
}

func (w *World) rate(q driver.Quantity) float64 {
	if q.Spec().Unit == "ratio" {
		return rapid.SampledFrom([]float64{0, 0.3, 1}).Draw(w.t, "ratio")
	}
	lowest, highest, spec := 0., 3e9, q.Spec()
	if spec.Max > 0 {
		highest = spec.Max
	}
	if spec.Type == driver.Counter {
		highest = spec.MaxRate
	}
	if spec.IsAbsent(0, driver.KindDevice) {
		lowest = 0.1
	}
	return rapid.SampledFrom([]float64{lowest, 0.7, 100, highest}).Draw(w.t, "rate")
}

// Step applies random events and then adds a random pause to the time. Step 0 precedes the first
// tick.
func (w *World) Step(pause []time.Duration) {
	if w.Tick > 0 {
		d := rapid.SampledFrom(pause).Draw(w.t, "pause")
		w.hints(d)
		w.Now = w.Now.Add(d)
	}
	for range rapid.IntRange(0, 2).Draw(w.t, "events") {
		w.event()
	}
	for _, s := range w.sources {
		for _, series := range s.series {
			if w.Tick > 0 && w.Tick%series.every == 0 {
				series.refresh(w.Now)
			}
		}
	}
	if !w.stalled {
		w.Signs.At, w.Seen = w.Now, slices.Clone(w.allocs)
	}
	w.Signs.Changes = slices.Clone(w.changes)
	w.view = w.dates.Date(w.Seen, w.Signs, w.Now)
	w.Tick++
}

func (s *simSeries) refresh(now time.Time) {
	r := &s.reading
	if r.Quantity.Spec().Type == driver.Counter {
		r.Value += s.rate * now.Sub(r.At).Seconds()
	} else {
		r.Value = s.rate
	}
	r.At = now
}

// highest returns more than twice what a counter counts in 100 s; 0 for a gauge.
func (s *simSeries) highest() float64 { return 250 * s.reading.Quantity.Spec().MaxRate }

// hints adds random signs of pods and CDI specs within the coming pause. The holds that they
// announce may or may not follow.
func (w *World) hints(pause time.Duration) {
	for range rapid.IntRange(0, 2).Draw(w.t, "hints") {
		at := w.Now.Add(time.Duration(rapid.IntRange(1, int(pause/Grain)).Draw(w.t, "hint")) * Grain)
		c := podresources.Change{At: at, Gone: rapid.Bool().Draw(w.t, "gone")}
		if rapid.Bool().Draw(w.t, "pod") {
			c.PodUID = "uid-" + w.drawPod().Name
		} else {
			c.CDI = []string{"example.com/gpu=" + w.drawClaim().Name}
		}
		w.changes = append(w.changes, c)
	}
	slices.SortStableFunc(w.changes, func(a, b podresources.Change) int { return a.At.Compare(b.At) })
	if n := len(w.changes); n > 6 {
		w.changes = slices.Clone(w.changes[n-6:])
	}
}

func (w *World) drawPod() podresources.Pod {
	return podresources.Pod{Namespace: "team", Name: rapid.SampledFrom([]string{"p0", "p1", "p2"}).Draw(w.t, "pod")}
}

func (w *World) drawClaim() podresources.Claim {
	return podresources.Claim{
		Namespace: "team", Name: rapid.SampledFrom([]string{"c0", "c1", "c2", "admin"}).Draw(w.t, "claim"),
	}
}

// drawShare returns a random share of a claim. Only one claim has shares.
func (w *World) drawShare(claim podresources.Claim) string {
	if claim.Name != "c2" {
		return ""
	}
	return rapid.SampledFrom([]string{"s1", "s2"}).Draw(w.t, "share")
}

func (w *World) drawDevice() *simDevice { return rapid.SampledFrom(w.Devices).Draw(w.t, "device") }

func (w *World) drawSeries() *simSeries {
	return rapid.SampledFrom(rapid.SampledFrom(w.sources).Draw(w.t, "source").series).Draw(w.t, "series")
}

// event applies one random event.
func (w *World) event() {
	switch rapid.SampledFrom(w.events).Draw(w.t, "event") {
	case "hold":
		w.hold(w.drawClaim())
	case "plugin":
		w.hold(podresources.Claim{Namespace: "team"})
	case "leave":
		w.leave()
	case "free":
		if i, ok := w.drawAllocation(); ok {
			w.allocs = slices.Delete(w.allocs, i, i+1)
		}
	case "facts":
		if i, ok := w.drawAllocation(); ok {
			w.allocs[i].Consumed = w.drawConsumed()
			w.allocs[i].Admin = !w.allocs[i].ByPlugin() && rapid.Bool().Draw(w.t, "admin")
			w.allocs[i].Pending = !w.allocs[i].ByPlugin() && rapid.Bool().Draw(w.t, "pending")
		}
	case "device":
		d := w.drawDevice()
		d.listed = !d.listed
	case "source":
		s := rapid.SampledFrom(w.sources).Draw(w.t, "source")
		s.down = !s.down
	case "series":
		s := w.drawSeries()
		s.missing = !s.missing
	case "reset":
		if s := w.drawSeries(); s.reading.Quantity.Spec().Type == driver.Counter {
			s.reading.Since, s.reading.Value, s.reading.At = w.Now, 0, w.Now
		}
	case "fall":
		if s := w.drawSeries(); s.reading.Quantity.Spec().Type == driver.Counter {
			to := []float64{0.95, 0.5, 0.3, 0}
			if w.Plain {
				to = []float64{0.95, 0}
			}
			if w.Plain && s.reading.Value < s.highest() {
				to = []float64{0.95}
			}
			s.reading.Value *= rapid.SampledFrom(to).Draw(w.t, "to")
		}
	case "rate":
		s := w.drawSeries()
		s.rate = w.rate(s.reading.Quantity)
	case "uid":
		w.identify(w.drawClaim())
	case "process":
		w.process()
	case "stall":
		w.stalled = !w.stalled
	}
}

// identify changes the known UID of a claim, possibly to none.
func (w *World) identify(claim podresources.Claim) {
	w.uids[claim] = rapid.SampledFrom([]string{"", "uid-1", "uid-2", "uid-3"}).Draw(w.t, "uid")
	for i := range w.allocs {
		if w.allocs[i].Claim == claim {
			w.allocs[i].ClaimUID = w.uids[claim]
		}
	}
}

// process starts, changes or ends a process that uses a device. It belongs to a pod or to none.
func (w *World) process() {
	d := w.drawDevice()
	pid := rapid.IntRange(1, 4).Draw(w.t, "pid")
	d.processes = slices.DeleteFunc(slices.Clone(d.processes), func(p driver.Process) bool { return p.PID == pid })
	p := driver.Process{PID: pid}
	for _, q := range []driver.Quantity{driver.Utilization, driver.MemoryUsed} {
		if rapid.IntRange(0, 3).Draw(w.t, "known") > 0 {
			p.Readings = append(p.Readings, driver.Reading{Quantity: q, Value: w.rate(q), At: w.Now})
		}
	}
	if rapid.IntRange(0, 3).Draw(w.t, "runs") > 0 {
		d.processes = append(d.processes, p)
	}
}

// PodOf returns the UIDs of the processes' pods, by PID. PID 4 has no pod.
func PodOf() map[int]string { return map[int]string{1: "uid-p0", 2: "uid-p1", 3: "uid-p2"} }

func (w *World) drawAllocation() (int, bool) {
	if len(w.allocs) == 0 {
		return 0, false
	}
	return rapid.IntRange(0, len(w.allocs)-1).Draw(w.t, "allocation"), true
}

func (w *World) drawConsumed() []driver.Amount {
	var out []driver.Amount
	for _, resource := range []string{"memory", "cores"} {
		if v := rapid.SampledFrom([]float64{0, 1, 3, 4e10}).Draw(w.t, resource); v > 0 {
			out = append(out, driver.Amount{Resource: resource, Value: v})
		}
	}
	return out
}

// hold gives a share of a device to a container of a pod, through a claim or, if the claim has no
// name, through a device plugin.
func (w *World) hold(claim podresources.Claim) {
	pod := w.drawPod()
	a := podresources.Allocation{
		Claim: claim, Device: w.drawDevice().id, ShareID: w.drawShare(claim),
		CDI: []string{"example.com/gpu=" + claim.Name}, Admin: claim.Name == "admin", ClaimUID: w.uids[claim],
	}
	h := podresources.Holder{
		Pod: pod, Container: rapid.SampledFrom([]string{"main", "side"}).Draw(w.t, "container"), UID: "uid-" + pod.Name,
	}
	a.Holders = []podresources.Holder{h}
	i, found := slices.BinarySearchFunc(w.allocs, a, podresources.Allocation.Compare)
	if !found {
		key := fmt.Sprint(a.Device, a.Claim, a.ShareID)
		if _, known := w.consumed[key]; !known {
			w.consumed[key] = w.drawConsumed()
		}
		a.Consumed = w.consumed[key]
		a.Pending = slices.Contains(w.events, "facts") && !a.ByPlugin() && rapid.Bool().Draw(w.t, "pending")
		w.allocs = slices.Insert(w.allocs, i, a)
	}
	held := &w.allocs[i]
	if !slices.Contains(held.Holders, h) {
		held.Holders = append(slices.Clone(held.Holders), h)
		slices.SortFunc(held.Holders, podresources.Holder.Compare)
	}
}

// leave removes one container from an allocation, and the allocation together with its last
// container.
func (w *World) leave() {
	i, ok := w.drawAllocation()
	if !ok {
		return
	}
	a := &w.allocs[i]
	n := rapid.IntRange(0, len(a.Holders)-1).Draw(w.t, "holder")
	a.Holders = slices.Delete(slices.Clone(a.Holders), n, n+1)
	if len(a.Holders) == 0 {
		w.allocs = slices.Delete(w.allocs, i, i+1)
	}
}

// Input returns the input of this tick.
func (w *World) Input() join.Input {
	in := join.Input{View: w.view, Inventory: driver.Inventory{}, PodOf: PodOf()}
	in.View.Allocations = slices.Clone(w.view.Allocations)
	for _, d := range w.Devices {
		if d.listed {
			in.Inventory[d.id] = driver.Entry{Hardware: d.hardware()}
		}
	}
	for _, s := range w.sources {
		out := join.SourceSamples{Name: s.name}
		for _, d := range w.Devices {
			if readings := s.read(d); !s.down && len(readings) > 0 {
				sample := driver.Sample{Hardware: driver.Hardware{UUID: d.uuid}, Readings: readings}
				if s.name == "b" {
					sample.Processes = slices.Clone(d.processes)
				}
				out.Samples = append(out.Samples, sample)
			}
		}
		in.Sources = append(in.Sources, out)
	}
	return in
}

func (d *simDevice) hardware() driver.Hardware {
	if d.parent == nil {
		return driver.Hardware{UUID: d.uuid}
	}
	return driver.Hardware{UUID: d.uuid, Kind: driver.KindPartition, Parent: d.parent.uuid, ParentShare: d.share}
}

func (s *simSource) read(d *simDevice) []driver.Reading {
	var out []driver.Reading
	for _, series := range s.series {
		if series.device == d && !series.missing {
			out = append(out, series.reading)
		}
	}
	return out
}

// Pauses are the possible times between ticks: the sampler's interval most often, and those of
// ticks for events, of hangs, and of the retention.
func Pauses() []time.Duration {
	return []time.Duration{
		time.Second, time.Second, time.Second, time.Second, 100 * time.Millisecond, 300 * time.Millisecond,
		2500 * time.Millisecond, 7 * time.Second, 40 * time.Second, 2 * time.Minute, 6 * time.Minute,
	}
}
