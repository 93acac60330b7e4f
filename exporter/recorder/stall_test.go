package recorder

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// reading is a value of a device.
type reading struct {
	quantity driver.Quantity
	label    string
	value    float64
}

// The levels are those of an H100 in training, and while it spins.
func works() []reading { return h100(0.99, 640, 0.9, 0.5, 0.1, 0.4) }
func spins() []reading { return h100(1, 125, 0.121, 0, 0.0031, 0) }

func h100(busy, watts, sm, tensor, integers, dram float64) []reading {
	return []reading{
		{driver.Utilization, "", busy},
		{driver.Power, "", watts},
		{driver.EngineUtilization, "sm", sm},
		{driver.EngineUtilization, "tensor", tensor},
		{driver.EngineUtilization, "fp64", 0},
		{driver.EngineUtilization, "fp32", 0},
		{driver.EngineUtilization, "fp16", 0},
		{driver.EngineUtilization, "int", integers},
		{driver.EngineUtilization, "dram", dram},
		{driver.EngineUtilization, "decoder", 0},
		{driver.IOBytes, "pcie", 0},
		{driver.PowerLimit, "enforced", 700},
		{driver.PowerLimit, "max", 700},
		{driver.Clock, "sm", 1980e6},
		{driver.ClockMax, "sm", 1980e6},
	}
}

// sleeps reads pods that do nothing on the host.
func sleeps(uids []string) map[string]podresources.PodWork {
	if uids == nil {
		return nil
	}
	out := map[string]podresources.PodWork{}
	for _, uid := range uids {
		out[uid] = podresources.PodWork{CPU: 1, Memory: 1e9, Storage: math.NaN(), Network: math.NaN()}
	}
	return out
}

func newStallsOf() *stalls { c := configOf(); return newStalls(&c) }

func configOf() Config { return Config{Interval: time.Second, Works: sleeps} }

// splitLabels returns the labels that are joined by a slash.
func splitLabels(text string) driver.Labels {
	first, second, _ := strings.Cut(text, "/")
	return driver.Labels{first, second}
}

// nodeOf has devices of claims, each with its readings.
type nodeOf struct {
	now     time.Time
	devices []book.Device
	claims  []book.Holder
	periods []*timeline.Period // of the devices
}

// hold adds a device that a claim holds for a pod.
func (n *nodeOf) hold(device, claim, pod string, edit ...func(*join.Device)) {
	id := jointest.ID(device)
	d := join.Device{ID: id, Attribution: join.AttributionExclusive}
	d.Shares = []join.Share{{Allocation: podresources.Allocation{
		Claim: podresources.Claim{Namespace: "team", Name: claim},
		Holders: []podresources.Holder{{
			Pod: podresources.Pod{Namespace: "team", Name: pod}, UID: "uid-" + pod, Meta: &podresources.PodMeta{Alone: true},
		}},
	}}}
	for _, f := range edit {
		f(&d)
	}
	n.devices = append(n.devices, book.Device{Device: &d, Key: &d.ID})
	n.claims = append(n.claims, book.Holder{HolderKey: &book.HolderKey{Namespace: "team", Name: claim, Device: id}})
	n.periods = append(n.periods, &timeline.Period{
		Device: id, Claim: d.Shares[0].Claim, Pod: d.Shares[0].Holders[0].Pod, From: n.now,
	})
}

// snapshot is of a second later, in which each device had these readings.
func (n *nodeOf) snapshot(of ...[]reading) *book.Snapshot {
	n.now = n.now.Add(time.Second)
	for i, readings := range of {
		n.devices[i].Values = nil
		for _, r := range readings {
			n.devices[i].Values = append(n.devices[i].Values, book.Value{
				Series: &book.Series{Quantity: r.quantity, Labels: splitLabels(r.label)}, Value: r.value,
			})
		}
	}
	for i := range n.devices {
		if of := n.periods[i]; len(n.devices[i].Shares) == 0 && of.To.IsZero() {
			ended := *of
			ended.To, n.periods[i] = n.now, &ended
		}
	}
	held := map[driver.ID][]*timeline.Period{}
	for _, p := range n.periods {
		held[p.Device] = append(held[p.Device], p)
	}
	past := timeline.Timeline(nil).With(held)
	devices := slices.SortedFunc(slices.Values(n.devices), func(a, b book.Device) int { return a.ID.Compare(b.ID) })
	return &book.Snapshot{Time: n.now, Devices: devices, Claims: n.claims, Timeline: past}
}

// standsOn has the signals on which the verdict stands.
const standsOn = "power,tensor,fp64,fp32,fp16,int,sm,memory_traffic,media,pcie,cpu,page_faults,host_memory"

// A claim that begins to stall is an incident, once, and the news have it at each tick.
func TestStallIsAnIncident(t *testing.T) {
	n, r := nodeOf{now: jointest.Start()}, New(configOf())
	n.hold("gpu-0", "claim", "pod")
	opened, stalled := 0, 0
	for at := time.Duration(0); at < 22*time.Minute; at += time.Second {
		does := works()
		if at > 10*time.Minute {
			does = spins()
		}
		news := r.Record(n.snapshot(does))
		for _, i := range news.Opened {
			if opened++; i.Kind != ClaimStalled || i.Code != standsOn {
				t.Errorf("the incident is %+v", i)
			}
		}
		if v := news.Stalled[n.claims[0].HolderKey]; v.Stalled != nil {
			stalled++
		}
	}
	expect.That(t, opened == 1 && stalled >= 120, "%d incidents, stalled for %d s", opened, stalled)
}

// Which devices are judged: no network device, CPU or share, nor a partition without a power
// reading of its own.
func TestWhatIsJudged(t *testing.T) {
	n := nodeOf{now: jointest.Start()}
	n.hold("gpu-0", "alone", "p0")
	n.hold("gpu-1", "shared", "p1", func(d *join.Device) { d.Attribution = join.AttributionEqual })
	n.hold("part", "part", "p2", func(d *join.Device) { d.Parent = "gpu-2" })
	n.hold("nic", "nic", "p3")
	n.hold("cpu", "cpu", "p4")
	n.hold("gpu-3", "dark", "p5")
	n.hold("gpu-4", "blind", "p6")
	readings := [][]reading{
		works(), works(),
		{{driver.Utilization, "", 1}, {driver.EngineUtilization, "dram", 0.3}},
		{{driver.IOBytes, "network", 5}},
		{{driver.Utilization, "", 0.5}},
		{{driver.Power, "", 300}},
		{{driver.Utilization, "", 1}, {driver.Power, "", 300}},
	}
	judge := newStallsOf()
	var got map[*book.HolderKey]stall.Verdict
	for range 200 { // long enough for a working level
		got, _ = judge.observe(n.snapshot(readings...))
	}
	want := map[string]stall.Reason{
		"alone": stall.Known, "shared": stall.Shared, "part": stall.Part, "dark": stall.NoBusy, "blind": stall.NoEngines,
	}
	expect.That(t, len(got) == len(want), "%d devices are judged, want %d", len(got), len(want))
	for key, v := range got {
		reason, ok := want[key.Name]
		expect.That(t, ok && v.Unknown == reason && v.Stalled == nil, "%s: %+v, want the reason %q", key.Name, v, reason)
	}
}

// Claims that come and go have a verdict, or have none, from the same snapshot on, whatever the
// others do: also in between two windows, and if a device gets a measurement that it lacked.
func TestVerdictsFollowClaims(t *testing.T) {
	n := nodeOf{now: jointest.Start()}
	n.hold("gpu-0", "b", "p0")
	n.hold("gpu-1", "c", "p1")
	n.hold("gpu-2", "d", "p2")
	r := New(configOf())
	dark := []reading{{driver.IOBytes, "network", 5}}
	check := func(want string, readings ...[]reading) {
		t.Helper()
		s := n.snapshot(readings...)
		got := r.Record(s).Stalled
		names := ""
		for i := range s.Claims {
			if v, judged := got[s.Claims[i].HolderKey]; judged {
				names += s.Claims[i].Name + " " + string(v.Unknown) + " "
			}
		}
		if names != want || len(got) != strings.Count(want, " ")/2 {
			t.Errorf("after %v: %d verdicts: %s, want %s", n.now.Sub(jointest.Start()), len(got), names, want)
		}
	}
	for range 100 {
		r.Record(n.snapshot(works(), works(), dark))
	}
	check("b  c  ", works(), works(), dark)
	check("b  c  d too_short ", works(), works(), works())
	n.hold("gpu-3", "a", "p3")
	last := len(n.devices) - 1
	n.devices[0], n.devices[last] = n.devices[last], n.devices[0]
	n.claims[0], n.claims[last] = n.claims[last], n.claims[0]
	n.periods[0], n.periods[last] = n.periods[last], n.periods[0]
	check("a too_short c  d too_short b  ", works(), works(), works(), works())
	n.claims[1].Ended = n.now
	check("a too_short d too_short b  ", works(), works(), works(), works())
	n.claims = slices.Delete(n.claims, 1, 2)
	check("a too_short d too_short b  ", works(), works(), works(), works())
	of := *n.claims[0].HolderKey
	n.claims[0].HolderKey, n.claims[0].Born = &of, n.now // another claim of that name
	check("a too_short d too_short b  ", works(), works(), works(), works())
	check("a too_short d too_short ", works(), works(), works(), dark)
	for range 40 {
		r.Record(n.snapshot(works(), works(), works(), dark))
	}
	check("a  d  ", works(), works(), works(), dark)
}

// sends is a network device that sends and receives, after some seconds.
func sends(seconds int) []reading {
	return []reading{
		{driver.IOBytes, "rdma/transmit", 5e7 * float64(seconds)}, {driver.IOBytes, "rdma/receive", 1e6 * float64(seconds)},
	}
}

// A rank that spins while the network device of its pod sends data is alive; so is one whose
// decoder works.
func TestOtherSignsOfLife(t *testing.T) {
	n := nodeOf{now: jointest.Start()}
	n.hold("gpu-0", "uploads", "p0")
	n.hold("nic", "nic", "p0")
	n.hold("gpu-1", "decodes", "p1")
	n.hold("gpu-2", "hangs", "p2")
	judge := newStallsOf()
	var got map[*book.HolderKey]stall.Verdict
	for i := range 20 * 60 {
		decodes := append(spins(), reading{driver.EngineUtilization, "decoder", 0.9})
		if i < 600 {
			got, _ = judge.observe(n.snapshot(works(), sends(i), works(), works()))
			continue
		}
		got, _ = judge.observe(n.snapshot(spins(), sends(i), decodes, spins()))
	}
	for key, v := range got {
		expect.That(t, (v.Stalled != nil) == (key.Name == "hangs") && v.Unknown == stall.Known, "%s: %+v", key.Name, v)
	}
}

// The incident of a claim that stalls begins when its power fell, however much later that is found,
// and its recording has the minute before; it is over when the claim works again, or is gone.
func TestCourseOfStall(t *testing.T) {
	const fall = 10*time.Minute + 7*time.Second
	for name, test := range map[string]struct {
		thread bool // a thread of its pod runs without a pause: it is given 40 minutes
		gone   bool
		want   Resolution
	}{
		"works again":   {want: WorksAgain},
		"ends":          {gone: true, want: ClaimGone},
		"a thread runs": {thread: true, want: WorksAgain},
	} {
		t.Run(name, func(t *testing.T) {
			config := configOf()
			cpu := 0.
			config.Works = func(uids []string) map[string]podresources.PodWork {
				out := sleeps(uids)
				for uid, work := range out {
					work.CPU = cpu
					out[uid] = work
				}
				return out
			}
			n, r := nodeOf{now: jointest.Start()}, New(config)
			n.hold("gpu-0", "claim", "pod")
			var opened, ended []*Incident
			for at := time.Duration(0); at < time.Hour && len(ended) == 0; at += time.Second {
				does := works()
				switch {
				case len(opened) > 0 && at > opened[0].Detected.Sub(jointest.Start())+2*time.Minute:
					if test.gone {
						n.devices[0].Shares, n.claims = nil, nil
					}
				case at >= fall:
					does = spins()
				}
				if test.thread {
					cpu++
				}
				news := r.Record(n.snapshot(does))
				opened, ended = append(opened, news.Opened...), append(ended, news.Ended...)
				if len(opened) == 1 && len(ended) == 0 && (len(news.Open) == 1) != (len(n.claims) == 1) {
					t.Fatalf("at %v the open incidents of claims are %v", at, news.Open)
				}
			}
			must.That(t, len(opened) == 1 && len(ended) == 1 && ended[0].Resolution == test.want,
				"%d incidents, those that ended are %+v", len(opened), ended)
			fell := jointest.Start().Add(fall)
			i := r.Incidents()[0]
			off := i.Onset.Sub(fell)
			expect.That(t, off.Abs() <= 2*time.Second, "the onset is off by %v", off)
			found := i.Detected.Sub(fell)
			expect.That(t, found >= 7*time.Minute && (!test.thread || found >= 35*time.Minute), "it was found after %v", found)
			must.That(t, i.Chart != nil, "there is no recording")
			var before, after bool
			for _, at := range i.Chart.Times {
				before = before || at.Before(fell.Add(-50*time.Second))
				after = after || at.Sub(i.Detected).Abs() < 2*time.Second
			}
			if !before || after == test.thread { // after 35 minutes, only the fall was recorded early
				t.Errorf("the recording of %d ticks lacks the minute before the fall, or the detection", len(i.Chart.Times))
			}
		})
	}
}
