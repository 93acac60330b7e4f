package fit_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const (
	gib = 1 << 30
	day = 24 * time.Hour
)

func id(name string) driver.ID { return driver.ID{Driver: "gpu.test", Pool: "node1", Device: name} }

// device is a device of 80 GiB, edited.
func device(name string, edit ...func(*join.Device)) join.Device {
	d := join.Device{ID: id(name), Entry: driver.Entry{
		Hardware: driver.Hardware{Model: "H100"}, Capacity: []driver.Amount{{Resource: "memory", Value: 80 * gib}},
	}}
	for _, f := range edit {
		f(&d)
	}
	return d
}

func memoryOf(v float64) func(*join.Device) {
	return func(d *join.Device) { d.Entry.Capacity = []driver.Amount{{Resource: "memory", Value: v}} }
}

// heldBy is a claim that holds the device for a request, and consumes of it.
func heldBy(claim string, edit ...func(*join.Share)) func(*join.Device) {
	s := join.Share{Allocation: podresources.Allocation{
		Claim: podresources.Claim{Namespace: "team", Name: claim}, Request: "gpu",
	}}
	for _, f := range edit {
		f(&s)
	}
	return func(d *join.Device) { d.Shares = append(d.Shares, s) }
}

func consumes(amounts ...driver.Amount) func(*join.Share) {
	return func(s *join.Share) { s.Consumed = amounts }
}

func shareable(policies ...driver.RequestPolicy) func(*join.Device) {
	return func(d *join.Device) { d.Entry.Shareable, d.Entry.Policies = true, policies }
}

// part is a partition of gpu-0: sevenths of its compute slices, and of its 132 multiprocessors.
func part(profile string, sevenths, processors, memory float64, edit ...func(*join.Device)) join.Device {
	d := device("gpu-0-"+profile, memoryOf(memory))
	d.Parent = "gpu-0"
	d.Entry.Kind, d.Entry.Profile = driver.KindPartition, profile
	d.Entry.ParentShare, d.Entry.ComputeShare = sevenths/7, processors/132
	for _, f := range edit {
		f(&d)
	}
	return d
}

// mig are the profiles of an H100, by NVIDIA's table (MIG User Guide).
func mig() []join.Device {
	return []join.Device{
		part("1g.10gb", 1, 16, 9984<<20), part("1g.20gb", 1, 26, 20096<<20), part("2g.20gb", 2, 32, 20096<<20),
		part("3g.40gb", 3, 60, 40448<<20), part("4g.40gb", 4, 64, 40448<<20), part("7g.80gb", 7, 132, 81152<<20),
	}
}

// use is what claim a used of a device in two hours.
func use(device string, memory, activity float64) fit.Use {
	return fit.Use{
		Claim: podresources.Claim{Namespace: "team", Name: "a"}, Device: id(device), Measured: 26 * time.Hour,
		MemoryEvery: time.Second, Settled: 20 * time.Hour, AtPeak: 0.5,
		Activity: activity, MaxActivity: activity, Memory: memory,
	}
}

func config() fit.Config {
	return fit.Config{
		After: 24 * time.Hour, Margin: 0.05, IdleThreshold: 0.01, MemoryEvery: time.Second,
	}
}

// advise returns the texts of the advices.
func advise(uses []fit.Use, devices []join.Device) string {
	var out []string
	for _, a := range fit.Advise(uses, devices, config()) {
		out = append(out, present.FitText(&a))
	}
	return strings.Join(out, "\n")
}

// The numbers are computed by hand. With a margin of 5 %, 11 GiB need 11.6 GiB, and an activity of
// 18 % needs 19.0 % of 132 multiprocessors: 25.01 of the 26 that 1g.20gb has. 18.8 % need 26.1.
func TestPartitions(t *testing.T) {
	const nothing = "nothing smaller is offered into which the claim would have fitted"
	whole := append(mig(), device("gpu-0", heldBy("a")))
	for name, tc := range map[string]struct {
		devices          []join.Device
		held             string
		memory, activity float64
		want             string
	}{
		"of the issue": {
			whole, "gpu-0", 11 * gib, 0.18,
			"gpu-0, 80 GiB: peak 11 GiB and p99.9 activity 18 % of 26.0 h: 1g.20gb fits; 86 % unused",
		},
		"one multiprocessor too many": {
			whole, "gpu-0", 11 * gib, 0.188,
			"gpu-0, 80 GiB: peak 11 GiB and p99.9 activity 19 % of 26.0 h: 2g.20gb fits; 71 % unused",
		},
		"memory within the margin": {
			whole, "gpu-0", 9300 << 20, 0.1,
			"gpu-0, 80 GiB: peak 9.08 GiB and p99.9 activity 10 % of 26.0 h: 1g.10gb fits; 86 % unused",
		},
		"memory beyond the margin": {
			whole, "gpu-0", 9500 << 20, 0.1,
			"gpu-0, 80 GiB: peak 9.28 GiB and p99.9 activity 10 % of 26.0 h: 1g.20gb fits; 86 % unused",
		},
		"nearly all": {
			whole, "gpu-0", 70 * gib, 0.18,
			"gpu-0, 80 GiB: peak 70 GiB and p99.9 activity 18 % of 26.0 h: " + nothing,
		},
		"of a partition": {
			append(mig(), part("3g.40gb", 3, 60, 40448<<20, heldBy("a"), func(d *join.Device) { d.ID = id("mig") })),
			"mig", 11 * gib, 0.4, // of 60 multiprocessors: 24, 25.3 with the margin
			"mig, 39.5 GiB: peak 11 GiB and p99.9 activity 40 % of 26.0 h: 1g.20gb fits; 67 % unused",
		},
		"of another model": {
			[]join.Device{device("gpu-1", heldBy("a")), part("1g.20gb", 1, 26, 20096<<20, func(d *join.Device) {
				d.Entry.Model = "A100"
			})},
			"gpu-1", 11 * gib, 0.1, "gpu-1, 80 GiB: peak 11 GiB and p99.9 activity 10 % of 26.0 h: " + nothing,
		},
		"of another GPU of the model": {
			[]join.Device{device("gpu-1", heldBy("a")), part("1g.20gb", 1, 26, 20096<<20)},
			"gpu-1", 11 * gib, 0.1,
			"gpu-1, 80 GiB: peak 11 GiB and p99.9 activity 10 % of 26.0 h: 1g.20gb fits; 86 % unused",
		},
		"of another pool": {
			[]join.Device{device("gpu-1", heldBy("a")), part("1g.20gb", 1, 26, 20096<<20, func(d *join.Device) {
				d.ID.Pool = "node2"
			})},
			"gpu-1", 11 * gib, 0.1, "gpu-1, 80 GiB: peak 11 GiB and p99.9 activity 10 % of 26.0 h: " + nothing,
		},
		"tainted": {
			[]join.Device{device("gpu-0", heldBy("a")), part("1g.20gb", 1, 26, 20096<<20, func(d *join.Device) {
				d.Entry.Taints = []driver.Taint{{Key: "x", Effect: "NoSchedule"}}
			})},
			"gpu-0", 11 * gib, 0.1, "gpu-0, 80 GiB: peak 11 GiB and p99.9 activity 10 % of 26.0 h: " + nothing,
		},
		"unlisted": {
			[]join.Device{device("gpu-0", heldBy("a")), part("1g.20gb", 1, 26, 20096<<20, func(d *join.Device) {
				d.Entry.Unlisted = true
			})},
			"gpu-0", 11 * gib, 0.1, "gpu-0, 80 GiB: peak 11 GiB and p99.9 activity 10 % of 26.0 h: " + nothing,
		},
		"of unknown size": {
			[]join.Device{device("gpu-0", heldBy("a")), part("half", 0, 0, 40*gib)},
			"gpu-0", 11 * gib, 0.1, "gpu-0, 80 GiB: peak 11 GiB and p99.9 activity 10 % of 26.0 h: " + nothing,
		},
		"without a profile": {
			[]join.Device{device("gpu-0", heldBy("a")), part("", 3.5, 0, 40*gib)},
			"gpu-0", 11 * gib, 0.47, // 49.5 % of the half that it is
			"gpu-0, 80 GiB: peak 11 GiB and p99.9 activity 47 % of 26.0 h: gpu-0- fits; 50 % unused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := advise([]fit.Use{use(tc.held, tc.memory, tc.activity)}, tc.devices); got != tc.want {
				t.Errorf("advice:\n%s\nwant:\n%s", got, tc.want)
			}
		})
	}
}

// 10 GiB of 80 need 10.5 GiB, 20 % of the activity 21.1 %: 16.8 GiB of 80, where compute goes with
// memory.
func TestShares(t *testing.T) {
	cores := func(d *join.Device) {
		d.Entry.Capacity = []driver.Amount{{Resource: "cores", Value: 100}, {Resource: "memory", Value: 80 * gib}}
	}
	memory := func(v float64) driver.Amount { return driver.Amount{Resource: "memory", Value: v} }
	half := heldBy("a", consumes(memory(40*gib)))
	const used = "peak 10 GiB and p99.9 activity 20 % of 26.0 h: "
	for name, tc := range map[string]struct {
		device join.Device
		want   string
	}{
		"any amount": {
			device("gpu-0", half, shareable()), "gpu-0, 40 GiB: " + used + "memory=17Gi fits; 57 % unused",
		},
		"in steps": {
			device("gpu-0", half, shareable(driver.RequestPolicy{Resource: "memory", Min: 10 * gib, Step: 10 * gib})),
			"gpu-0, 40 GiB: " + used + "memory=20Gi fits; 50 % unused",
		},
		"of a list": {
			device("gpu-0", half, shareable(driver.RequestPolicy{Resource: "memory", Values: []float64{8 * gib, 30 * gib}})),
			"gpu-0, 40 GiB: " + used + "memory=30Gi fits; 25 % unused",
		},
		"in a range": {
			device("gpu-0", half, shareable(driver.RequestPolicy{Resource: "memory", Max: 17247 << 20})), // 16.84 GiB
			"gpu-0, 40 GiB: " + used + "memory=17247Mi fits; 58 % unused",
		},
		"none is large enough": {
			device("gpu-0", half, shareable(driver.RequestPolicy{Resource: "memory", Max: 12 * gib})),
			"gpu-0, 40 GiB: " + used + "nothing smaller is offered into which the claim would have fitted",
		},
		// 22 of 100 cores and 11 of 80 GiB, in place of 50 and 40: (0.22 + 0.1375) / 2 of 0.5
		"memory and cores": {
			device("gpu-0", cores, shareable(),
				heldBy("a", consumes(driver.Amount{Resource: "cores", Value: 50}, memory(40*gib)))),
			"gpu-0, 40 GiB: " + used + "cores=22,memory=11Gi fits; 64 % unused",
		},
		"it consumes cores that the device does not have": {
			device("gpu-0", heldBy("a", consumes(driver.Amount{Resource: "cores", Value: 50}, memory(40*gib))), shareable()),
			"gpu-0, 40 GiB: " + used + "memory=17Gi fits; 57 % unused",
		},
		"what it consumes is not known": {
			device("gpu-0", heldBy("a"), shareable()), "gpu-0: " + "the size of the device, or of the share, is not known",
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := use("gpu-0", 10*gib, 0.2)
			if got := advise([]fit.Use{u}, []join.Device{tc.device}); got != tc.want {
				t.Errorf("advice:\n%s\nwant:\n%s", got, tc.want)
			}
		})
	}
	if got := advise([]fit.Use{use("gpu-0", 0, 0)}, []join.Device{device("gpu-0", half, shareable())}); got !=
		"gpu-0, 40 GiB: peak 0 B and p99.9 activity 0 % of 26.0 h: memory=1Gi fits; 98 % unused" {
		t.Errorf("of what was never used: %s", got)
	}
	// a whole device, where another one is shared
	whole := []join.Device{device("gpu-0", heldBy("a")), device("gpu-1", shareable())}
	got := advise([]fit.Use{use("gpu-0", 10*gib, 0.2)}, whole)
	if want := "gpu-0, 80 GiB: " + used + "memory=17Gi fits; 79 % unused"; got != want {
		t.Errorf("advice:\n%s\nwant:\n%s", got, want)
	}
}

func TestFewerDevices(t *testing.T) {
	four := func(edit ...func(*join.Share)) []join.Device {
		var out []join.Device
		for i := range 4 {
			out = append(out, device(fmt.Sprint("gpu-", i), heldBy("a", edit...)))
		}
		return out
	}
	const (
		nothing = ": nothing smaller is offered into which the claim would have fitted"
		others  = ": the claim's other devices suffice"
		busy    = "gpu-0, 80 GiB: peak 30 GiB and p99.9 activity 90 % of 26.0 h"
	)
	idle := func(i int, memory float64) string {
		return fmt.Sprintf("gpu-%d, 80 GiB: peak %g GiB and p99.9 activity 0 %% of 26.0 h", i, memory)
	}
	moment, unknown := use("gpu-1", 2*gib, 0), use("gpu-2", 0, 0)
	moment.MaxActivity, unknown.Measured = 0.5, 0
	half := heldBy("a", consumes(driver.Amount{Resource: "memory", Value: 40 * gib}))
	other := use("gpu-1", 2*gib, 0)
	other.Claim.Name = "b"
	for name, tc := range map[string]struct {
		devices []join.Device
		uses    []fit.Use
		want    []string
	}{
		"one of four": {
			four(),
			[]fit.Use{use("gpu-0", 30*gib, 0.9), use("gpu-1", 2*gib, 0), use("gpu-2", 2*gib, 0), use("gpu-3", 2*gib, 0)},
			[]string{busy + nothing, idle(1, 2) + others, idle(2, 2) + others, idle(3, 2) + others},
		},
		"none of three: the one with the most memory stays": {
			four()[:3],
			[]fit.Use{use("gpu-0", 1*gib, 0), use("gpu-1", 3*gib, 0), use("gpu-2", 2*gib, 0)},
			[]string{idle(0, 1) + others, idle(1, 3) + nothing, idle(2, 2) + others},
		},
		// 76 GiB are 95 % of 80: 30 and 46 fit, and then nothing more
		"memory that does not fit": {
			four()[:3],
			[]fit.Use{use("gpu-0", 30*gib, 0.9), use("gpu-1", 46*gib, 0), use("gpu-2", 1*gib, 0)},
			[]string{busy + nothing, idle(1, 46) + others, idle(2, 1) + nothing},
		},
		"one that worked for a moment": {
			four()[:2],
			[]fit.Use{use("gpu-0", 30*gib, 0.9), moment},
			[]string{busy + nothing, idle(1, 2) + nothing},
		},
		"of another request": {
			append(four()[:1], device("gpu-1", heldBy("a", func(s *join.Share) { s.Request = "spare" }))),
			[]fit.Use{use("gpu-0", 30*gib, 0.9), use("gpu-1", 2*gib, 0)},
			[]string{busy + nothing, idle(1, 2) + nothing},
		},
		"one of unknown use": {
			four()[:3],
			[]fit.Use{use("gpu-0", 30*gib, 0.9), use("gpu-1", 2*gib, 0), unknown},
			[]string{
				busy + nothing, idle(1, 2) + nothing, "gpu-2: the activity or the memory of the device is not measured",
			},
		},
		"of two claims": {
			[]join.Device{device("gpu-0", heldBy("a")), device("gpu-1", heldBy("b"))},
			[]fit.Use{use("gpu-0", 1*gib, 0), other},
			[]string{idle(0, 1) + nothing, idle(1, 2) + nothing},
		},
		"shares, which others may need": {
			[]join.Device{device("gpu-0", half, shareable()), device("gpu-1", half, shareable())},
			[]fit.Use{use("gpu-0", 30*gib, 0.45), use("gpu-1", 2*gib, 0)},
			[]string{
				"gpu-0, 40 GiB: peak 30 GiB and p99.9 activity 45 % of 26.0 h: " +
					"nothing smaller fits: it would leave less than a tenth",
				"gpu-1, 40 GiB: peak 2 GiB and p99.9 activity 0 % of 26.0 h: memory=3Gi fits; 92 % unused",
			},
		},
		"although a partition would do": {
			append(four()[:2], mig()...),
			[]fit.Use{use("gpu-0", 30*gib, 0.9), use("gpu-1", 2*gib, 0)},
			[]string{busy + nothing, idle(1, 2) + others},
		},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, "", strings.Join(tc.want, "\n"), advise(tc.uses, tc.devices))
		})
	}
}

// Insufficiently known claims get no advice and no ratio.
func TestReasons(t *testing.T) {
	devices := append(mig(), device("gpu-0", heldBy("a")))
	edit := func(f func(*fit.Use)) fit.Use {
		u := use("gpu-0", 11*gib, 0.18)
		f(&u)
		return u
	}
	gpu := func(edit ...func(*join.Device)) []join.Device { return []join.Device{device("gpu-0", edit...)} }
	admin := func(s *join.Share) { s.Admin = true }
	another := func(s *join.Share) { s.ShareID = "another" }
	orphan := part("x", 0, 0, gib, heldBy("a"), func(d *join.Device) { d.ID = id("gpu-0") })
	as := edit(func(*fit.Use) {})
	ended := func(measured, settled time.Duration) fit.Use {
		return edit(func(u *fit.Use) { u.Measured, u.Settled, u.Ended = measured, settled, &join.Share{} })
	}
	for name, tc := range map[string]struct {
		use     fit.Use
		devices []join.Device
		want    fit.Reason
	}{
		"advised":               {as, devices, fit.Advised},
		"after less than a day": {edit(func(u *fit.Use) { u.Measured = day - time.Minute }), devices, fit.TooShort},
		"read every 5 s":        {edit(func(u *fit.Use) { u.MemoryEvery = 5 * time.Second }), devices, fit.ReadRarely},
		"growing":               {edit(func(u *fit.Use) { u.Settled = 12 * time.Hour }), devices, fit.Growing},
		"at its peak for 4 %":   {edit(func(u *fit.Use) { u.AtPeak = 0.04 }), devices, fit.RarePeak},
		"ended, and grew":       {ended(day, 12*time.Hour), gpu(), fit.NothingSmaller},
		"ended after a minute":  {ended(time.Minute, 0), gpu(), fit.NothingSmaller},
		"ended before":          {ended(59*time.Second, 0), gpu(), fit.TooShort},
		"began before":          {edit(func(u *fit.Use) { u.Partial = true }), devices, fit.Advised},
		"contradicted":          {edit(func(u *fit.Use) { u.Contradicted = true }), devices, fit.Contradicted},
		"not measured":          {edit(func(u *fit.Use) { u.Measured = 0 }), devices, fit.NotMeasured},
		"divided":               {edit(func(u *fit.Use) { u.Divided = true }), devices, fit.Divided},
		"admin access":          {as, gpu(heldBy("a", admin)), fit.SeveralShares},
		"two shares":            {as, gpu(heldBy("a"), heldBy("a", another)), fit.SeveralShares},
		"unknown memory":        {as, gpu(heldBy("a"), memoryOf(0)), fit.UnknownSize},
		"of an unknown parent":  {as, []join.Device{orphan}, fit.UnknownSize},
	} {
		t.Run(name, func(t *testing.T) {
			got := fit.Advise([]fit.Use{tc.use}, tc.devices, config())
			must.That(t, len(got) == 1 && got[0].Reason == tc.want, "%+v, want one for the reason %q", got, tc.want)
			if a := &got[0]; !a.Known() && (a.HeldMemory != 0 || a.NeededMemory != 0 || a.NeededActivity != 0 || a.Unused != 0) {
				t.Errorf("without advice: %+v", a)
			}
		})
	}
	for _, gone := range [][]join.Device{nil, {device("gpu-0")}, {device("gpu-0", heldBy("b"))}} {
		if got := fit.Advise([]fit.Use{use("gpu-0", gib, 0)}, gone, config()); len(got) > 0 {
			t.Errorf("a claim that does not hold the device: %+v", got)
		}
	}
}

// Without a limit, the memory may be read rarely.
func TestReadRarely(t *testing.T) {
	u, c := use("gpu-0", 11*gib, 0.18), config()
	u.MemoryEvery, c.MemoryEvery = time.Hour, 0
	got := fit.Advise([]fit.Use{u}, []join.Device{device("gpu-0", heldBy("a"))}, c)
	expect.Is(t, got[0].Reason, fit.NothingSmaller, "the reason")
}

// 38 GiB and 38 % need 40 GiB of 80 and 40 %; more than all is all.
func TestNeeded(t *testing.T) {
	for _, tc := range []struct{ memory, activity, wantMemory, wantActivity float64 }{
		{38 * gib, 0.38, 0.5, 0.4}, {79 * gib, 0.99, 1, 1}, {0, 0, 0, 0},
	} {
		uses := []fit.Use{use("gpu-0", tc.memory, tc.activity)}
		a := fit.Advise(uses, []join.Device{device("gpu-0", heldBy("a"))}, config())[0]
		if a.HeldMemory != 80*gib || !near(a.NeededMemory, tc.wantMemory) || !near(a.NeededActivity, tc.wantActivity) {
			t.Errorf("%+v: needs %v of %v and %v", tc, a.NeededMemory, a.HeldMemory, a.NeededActivity)
		}
	}
}

func near(a, b float64) bool { return a-b < 1e-12 && b-a < 1e-12 }

// What a node offers to a claim that uses 11 GiB and a tenth of gpu-0: the smallest alternative.
func TestOffers(t *testing.T) {
	noModel := func(d *join.Device) { d.Entry.Model = "" }
	taint := func(effect string) func(*join.Device) {
		return func(d *join.Device) { d.Entry.Taints = []driver.Taint{{Effect: effect}} }
	}
	of := func(parent string) func(*join.Device) { return func(d *join.Device) { d.Parent = parent } }
	named := func(name string) func(*join.Device) { return func(d *join.Device) { d.ID = id(name) } }
	capacity := func(all ...driver.Amount) func(*join.Device) { return func(d *join.Device) { d.Entry.Capacity = all } }
	reads := func(memory float64) func(*join.Device) {
		return func(d *join.Device) {
			d.Readings = []join.Reading{{Reading: driver.Reading{Quantity: driver.MemoryCapacity, Value: memory}}}
		}
	}
	memory := driver.Amount{Resource: "memory", Value: 80 * gib}
	cores, links := driver.Amount{Resource: "cores", Value: 100}, driver.Amount{Resource: "links", Value: 100}
	all := heldBy("a", consumes(memory, cores, links))
	sizes := driver.RequestPolicy{Resource: "memory", Values: []float64{11.75 * gib, 20 * gib}}
	passed := func(d *join.Device) { d.Entry.Kind = driver.KindPassthrough }
	steps := func(resource string, size float64) driver.RequestPolicy {
		return driver.RequestPolicy{Resource: resource, Step: size}
	}
	gone := func(d *join.Device) { d.Entry.DriverGone = true }
	least := func(v float64) driver.RequestPolicy { return driver.RequestPolicy{Resource: "memory", Min: v} }
	small := func(edit ...func(*join.Device)) join.Device { return part("1g.20gb", 1, 26, 20*gib, edit...) }
	shared := func(edit ...func(*join.Device)) join.Device { return device("gpu-0", append(edit, all)...) }
	whole, unnamed := device("gpu-0", heldBy("a")), device("gpu-0", heldBy("a"), noModel)
	large := part("6g", 6, 120, 70*gib, heldBy("a"), noModel, of("x"), named("gpu-0"))
	enough := heldBy("a", consumes(driver.Amount{Resource: "memory", Value: 12 * gib}, links))
	offer := func(held join.Device, others ...join.Device) []join.Device { return append(others, held) }
	for name, tc := range map[string]struct {
		devices []join.Device
		want    string // empty: nothing
	}{
		"a taint without an effect":           {offer(whole, small(taint("None"))), "1g.20gb"},
		"a taint that evicts":                 {offer(whole, small(taint("NoExecute"))), ""},
		"a partition whose driver is gone":    {offer(whole, small(gone)), ""},
		"a whole device with less memory":     {offer(whole, device("gpu-1", memoryOf(40*gib))), ""},
		"a device that is passed through":     {offer(whole, device("gpu-1", shareable(), passed)), ""},
		"its own part, of no model":           {offer(unnamed, small(noModel)), "1g.20gb"},
		"another's part, of no model":         {offer(unnamed, small(noModel, of("gpu-1"))), ""},
		"another device's share, of no model": {offer(unnamed, device("gpu-1", noModel, shareable())), ""},
		"a share of itself, of no model":      {offer(shared(noModel, shareable())), "memory=12Gi"},
		"a part beside it, of no model":       {offer(large, small(noModel, of("x"))), "1g.20gb"},
		"a part elsewhere, of no model":       {offer(large, small(noModel, of("y"))), ""},
		"the smaller memory of equal parts":   {offer(whole, small(), part("1g.15gb", 1, 26, 15*gib)), "1g.15gb"},
		"the smaller part, with more memory":  {offer(whole, small(), part("2g.15gb", 2, 32, 15*gib)), "1g.20gb"},
		"a part that is smaller than a share": {
			offer(whole, small(), device("gpu-1", shareable(steps("memory", 40*gib)))), "1g.20gb",
		},
		"memory that is only read": {
			offer(device("gpu-0", heldBy("a"), memoryOf(0), reads(80*gib)), small()), "1g.20gb",
		},
		"a part whose memory is only read":   {offer(whole, small(memoryOf(0), reads(20*gib))), "1g.20gb"},
		"less is read than the driver lists": {offer(whole, small(reads(gib))), "1g.20gb"},
		"a share of memory and cores": {
			offer(shared(shareable(), capacity(memory, cores, links))), "memory=12Gi,cores=11",
		},
		"a share of links alone": {
			offer(whole, device("gpu-1", shareable(), capacity(links), reads(80*gib))), "",
		},
		"a share without its cores":      {offer(shared(shareable(), capacity(memory, links))), "memory=12Gi"},
		"steps between whole GiB":        {offer(shared(shareable(steps("memory", gib/4)))), "memory=12032Mi"},
		"sizes between whole GiB":        {offer(shared(shareable(sizes))), "memory=12032Mi"},
		"a least size":                   {offer(shared(shareable(least(30 * gib)))), "memory=30Gi"},
		"a least size that is too small": {offer(shared(shareable(least(5 * gib)))), "memory=12Gi"},
		"steps beyond the device": {
			offer(shared(shareable(steps("memory", 90*gib), steps("cores", 1)), capacity(memory, cores))), "",
		},
		"a share of a small share": {offer(device("gpu-0", enough, shareable(), capacity(memory, links))), ""},
	} {
		got := fit.Advise([]fit.Use{use("gpu-0", 11*gib, 0.1)}, tc.devices, config())
		must.That(t, len(got) == 1, "%s: %+v", name, got)
		reason := fit.Advised
		if tc.want == "" {
			reason = fit.NothingSmaller
		}
		expect.That(t, got[0].Alternative.Name == tc.want && got[0].Veto == fit.NoVeto && got[0].Reason == reason,
			"%s: %q, veto %q, want %q; reason %q", name, got[0].Alternative.Name, got[0].Veto, tc.want, got[0].Reason)
	}
}

// A smaller alternative that is vetoed changes nothing about a larger one that fits.
func TestVetoOfSmaller(t *testing.T) {
	u := use("gpu-0", 11*gib, 0.1)
	u.Bandwidth = 0.2 // that of 16 GiB
	devices := []join.Device{device("gpu-0", heldBy("a")), part("2g", 2, 32, 20*gib), part("1g", 1, 26, 13*gib)}
	got := fit.Advise([]fit.Use{u}, devices, config())
	expect.That(t, got[0].Alternative.Name == "2g" && got[0].Veto == fit.NoVeto, "%+v", got[0])
}

// Who used nothing fits into anything whose size is known.
func TestNothingUsed(t *testing.T) {
	devices := []join.Device{device("gpu-0", heldBy("a")), part("unknown", 1, 0, 0), part("1g", 1, 16, gib)}
	got := fit.Advise([]fit.Use{use("gpu-0", 0, 0)}, devices, config())
	expect.Is(t, got[0].Alternative.Name, "1g", "the alternative")
}

// BenchmarkAdvise advises 500 claims on 64 devices. Every fourth device is listed with 14 possible
// partitions, and every eighth is shared by memory. This happens once a minute, in one tick.
func BenchmarkAdvise(b *testing.B) {
	var devices []join.Device
	var uses []fit.Use
	for i := range 64 {
		d := device(fmt.Sprintf("gpu-%02d", i))
		if i%8 == 1 {
			shareable()(&d)
		}
		for n := i; n < 500; n += 64 {
			claim := fmt.Sprintf("claim-%d", n)
			heldBy(claim, consumes(driver.Amount{Resource: "memory", Value: 10 * gib}))(&d)
			u := use(d.ID.Device, float64(n%80)*gib, float64(n%100)/100)
			u.Claim.Name = claim
			uses = append(uses, u)
		}
		devices = append(devices, d)
		for k := 0; k < 14 && i%4 == 0; k++ {
			p := mig()[k%6]
			p.ID.Device, p.Parent = fmt.Sprintf("%s-part-%d", d.ID.Device, k), d.ID.Device
			devices = append(devices, p)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if got := fit.Advise(uses, devices, config()); len(got) != 500 {
			b.Fatal(len(got))
		}
	}
}

// A claim that fits by memory and compute does not fit into an alternative that lacks something
// else that it uses. The advice names it.
func TestVetoes(t *testing.T) {
	const (
		what = "gpu-0, 80 GiB: peak 6 GiB and p99.9 activity 10 % of 26.0 h: "
		no   = what + "nothing smaller fits: "
	)
	whole := append(mig(), device("gpu-0", heldBy("a")))
	shared := device("gpu-0", heldBy("a", consumes(driver.Amount{Resource: "memory", Value: 40 * gib})), shareable())
	for name, tc := range map[string]struct {
		devices []join.Device
		edit    func(*fit.Use)
		want    string
	}{
		"none": {whole, func(*fit.Use) {}, what + "1g.10gb fits; 86 % unused"},
		"peers": {
			whole, func(u *fit.Use) { u.Peers = 200e9 },
			no + "up to 200 GB/s went to other devices, over links that parts of a device do not have",
		},
		"peers of a share, which keeps the links": {
			[]join.Device{shared},
			func(u *fit.Use) { u.Peers = 200e9 },
			"gpu-0, 40 GiB: peak 6 GiB and p99.9 activity 10 % of 26.0 h: memory=9Gi fits; 78 % unused",
		},
		"a decoder": {
			whole, func(u *fit.Use) { u.Media, u.Engine = 0.9, "decoder" },
			no + "the engine decoder was busy for up to 90 %, which parts of a device have fewer of, or none",
		},
		"a decoder, hardly": {
			whole, func(u *fit.Use) { u.Media, u.Engine = 0.01, "decoder" }, what + "1g.10gb fits; 86 % unused",
		},
		"bandwidth": { // 40 % need 42 %, and half of the memory has half of it
			whole, func(u *fit.Use) { u.Bandwidth = 0.4 }, what + "3g.40gb fits; 57 % unused",
		},
		"more bandwidth": {
			whole, func(u *fit.Use) { u.Bandwidth = 0.96 }, no + "96 % of the bandwidth of the memory was used",
		},
		"copies": {
			whole, func(u *fit.Use) { u.Copies = 0.3 }, what + "3g.40gb fits; 57 % unused",
		},
		"more copies": {
			whole, func(u *fit.Use) { u.Copies = 1 }, no + "the copy engines were busy for up to 100 %",
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := use("gpu-0", 6*gib, 0.1)
			tc.edit(&u)
			if got := advise([]fit.Use{u}, tc.devices); got != tc.want {
				t.Errorf("advice:\n%s\nwant:\n%s", got, tc.want)
			}
		})
	}
}

// A partition that is the whole device saves nothing.
func TestNoSaving(t *testing.T) {
	whole := []join.Device{device("gpu-0", heldBy("a")), part("7g.80gb", 7, 132, 81152<<20, func(d *join.Device) {
		d.Entry.ParentShare = 0.995
	})}
	got := advise([]fit.Use{use("gpu-0", 60*gib, 0.9)}, whole)
	expect.That(t, strings.HasSuffix(got, ": nothing smaller fits: it would leave less than a tenth"), "%v", got)
}

// A device that only decodes, or only exchanges data, is used, whatever its utilization is.
func TestUsedByOtherThanKernels(t *testing.T) {
	devices := []join.Device{device("gpu-0", heldBy("a")), device("gpu-1", heldBy("a")), device("gpu-2", heldBy("a"))}
	decodes, sends := use("gpu-1", 2*gib, 0), use("gpu-2", 2*gib, 0)
	decodes.Media, sends.Peers = 0.9, 1e9
	for _, a := range fit.Advise([]fit.Use{use("gpu-0", 30*gib, 0.9), decodes, sends}, devices, config()) {
		expect.That(t, a.Reason != fit.Advised, "%+v", a)
	}
}

func TestMain(m *testing.M) { exportertest.Main(m) }
