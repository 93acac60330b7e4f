package ledger_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// partitioned is the history of gpu-0 and its partitions, which have a utilization.
type partitioned struct{ *exportertest.History }

// newPartitioned returns gpu-0 with two partitions: part-0, a quarter, and part-1, a half. Claim c0
// with pod p0 holds part-0, and claim c1 with pod p1 holds part-1.
func newPartitioned(t *testing.T) partitioned {
	p := partitioned{exportertest.NewHistory(t)}
	p.add("part-0", 0.25)
	p.add("part-1", 0.5)
	p.hold("part-0", "c0", "p0")
	p.hold("part-1", "c1", "p1")
	return p
}

func (p partitioned) add(name string, share float64) {
	p.In.Inventory[jointest.ID(name)] = driver.Entry{Hardware: driver.Hardware{
		UUID: name, Kind: driver.KindPartition, Parent: "gpu-0", ParentShare: share,
	}}
}

func (p partitioned) hold(device, claim string, pods ...string) *podresources.Allocation {
	p.In.View.Allocations = append(slices.Clone(p.In.View.Allocations), jointest.Allocation(device, claim, pods...))
	return &p.In.View.Allocations[len(p.In.View.Allocations)-1]
}

// read sets the power and energy of gpu-0, and the activity of its partitions. An activity below 0
// is not read.
func (p partitioned) read(watts, joules float64, activity ...float64) {
	p.Read(driver.Reading{Quantity: driver.Power, Value: watts}, driver.Reading{Quantity: driver.Energy, Value: joules})
	for i, name := range []string{"part-0", "part-1"} {
		if i < len(activity) && activity[i] >= 0 {
			p.ReadOf(name, driver.Reading{Quantity: driver.Utilization, Value: activity[i]})
		} else {
			p.ReadOf(name, driver.Reading{Quantity: driver.MemoryUsed, Value: 1})
		}
	}
}

// run sets the processes that use part-1.
func (p partitioned) run(processes ...driver.Process) {
	for i := range p.In.Sources[0].Samples {
		if s := &p.In.Sources[0].Samples[i]; s.Hardware.UUID == "part-1" {
			s.Processes = processes
			for _, process := range processes {
				for j := range process.Readings {
					process.Readings[j].At = p.Now
				}
			}
		}
	}
}

const (
	claimPower, podPower   = "dra_claim_power_watts", "dra_pod_power_watts"
	claimEnergy, podEnergy = "dra_claim_energy_joules_total", "dra_pod_energy_joules_total"
	restPower, restEnergy  = "dra_device_unattributed_power_watts", "dra_device_unattributed_energy_joules_total"
	sourceInfo             = "dra_device_quantity_source_info"
)

// The claims of partitions get the parent's idle power by share, and the rest by activity × share.
// What belongs to no held partition is the unattributed part of the parent.
func TestPartitions(t *testing.T) {
	p := newPartitioned(t)
	p.read(80, 1000, 0, 0) // idle
	p.Pass(time.Second)
	p.read(180, 1080, 1, 0) // 80 J while the activity of part-0 rose
	p.Pass(time.Second)
	p.read(280, 1280, 1, 0.5) // 80 J of the 200 J are idle; activity 1 × ¼ and 0.25 × ½
	x := p.Tick(time.Second)
	idle, active := 80.0, 200.0
	p.Expect(x, map[[2]string]float64{
		{claimPower, "resourceclaim_name=c0"}: idle/4 + active/2,
		{claimPower, "resourceclaim_name=c1"}: idle/2 + active/2,
		{podPower, "pod=p0"}:                  idle/4 + active/2,
		{podPower, "pod=p1"}:                  idle/2 + active/2,
		{restPower, "device=gpu-0"}:           idle / 4,

		{claimEnergy, "resourceclaim_name=c0"}: 80/4 + 80/4 + 120*2./3,
		{claimEnergy, "resourceclaim_name=c1"}: 80/2 + 80/2 + 120*1./3,
		{podEnergy, "pod=p0"}:                  80/4 + 80/4 + 120*2./3,
		{podEnergy, "pod=p1"}:                  80/2 + 80/2 + 120*1./3,
		{restEnergy, "device=gpu-0"}:           80/4 + 80/4,

		{"dra_device_energy_joules_total", "device=gpu-0"}: 280, // partitions have no energy
		{"dra_device_power_watts", "device=gpu-0"}:         280,
	})
	for _, q := range []string{"power", "energy"} {
		if got := len(x.Matching(sourceInfo, "quantity="+q, "source=a (divided)")); got != 2 {
			t.Errorf("%d partitions have a divided %s, want 2: %v", got, q, x[sourceInfo])
		}
	}
	exportertest.Lint(t, p.Last)
}

// While the activity of a partition is unknown, its claims get their share, and the source info
// shows that.
func TestPartitionsByShare(t *testing.T) {
	p := newPartitioned(t)
	p.read(200, 0)
	p.Pass(time.Second)
	p.read(200, 100)
	x := p.Tick(time.Second)
	p.Expect(x, map[[2]string]float64{
		{claimEnergy, "resourceclaim_name=c0"}: 25, {claimEnergy, "resourceclaim_name=c1"}: 50,
		{restEnergy, "device=gpu-0"}: 25, {claimPower, "resourceclaim_name=c0"}: 50, {restPower, "device=gpu-0"}: 50,
	})
	if len(x.Matching(sourceInfo, "device=part-0", "quantity=energy", "source=a (divided by share)")) != 1 ||
		len(x.Matching(sourceInfo, "device=part-0", "quantity=power", "source=a (divided by share)")) != 1 {
		t.Errorf("the sources are %v", x[sourceInfo])
	}
	p.read(200, 200, 1, 0) // becomes known
	if x := p.Tick(time.Second); len(x.Matching(sourceInfo, "device=part-0", "source=a (divided)")) != 2 {
		t.Errorf("the sources are %v", x[sourceInfo])
	}
}

// A partition gets no part if its share is unknown, if no claim holds it, or if only a claim with
// admin access holds it.
func TestPartitionsWithoutPart(t *testing.T) {
	p := newPartitioned(t)
	p.add("part-1", 0)
	p.add("part-2", 0.25)
	p.add("part-3", 0.25)
	p.hold("part-3", "root", "p9").Admin = true
	p.read(100, 0)
	p.Pass(time.Second)
	p.read(100, 100)
	x := p.Tick(time.Second)
	p.Expect(x, map[[2]string]float64{
		{claimEnergy, "resourceclaim_name=c0"}: 25, {restEnergy, "device=gpu-0"}: 75, {restPower, "device=gpu-0"}: 75,
	})
	expect.That(t, len(x[claimEnergy]) == 1 && len(x[claimPower]) == 1 && len(x[podEnergy]) == 1,
		"%v, %v, %v: want those of part-0 alone", x[claimEnergy], x[claimPower], x[podEnergy])
}

// The part of a partition is divided among its claims and pods by the method of the partition: by
// consumed capacity or by process. What belongs to no holder is the unattributed part of the
// parent.
func TestPartitionsShared(t *testing.T) {
	p := newPartitioned(t)
	p.In.View.Allocations = nil
	for i, claim := range []string{"a", "b"} {
		a := p.hold("part-0", claim, "p0")
		a.ShareID, a.Consumed = claim, []driver.Amount{{Resource: "memory", Value: float64(1 + 2*i)}}
	}
	p.hold("part-1", "c", "p1", "p2")
	p.In.PodOf = exportertest.PodOf()
	for i := range 2 {
		p.read(100, 100*float64(i), 0.4, 0.8)
		p.run(exportertest.Process(2, 0.6, 1), exportertest.Process(3, 0.2, 1))
		p.Pass(time.Second)
	}
	p.read(100, 200, 0.4, 0.8)
	p.run(exportertest.Process(2, 0.6, 1), exportertest.Process(3, 0.2, 1))
	x := p.Tick(time.Second)
	p.Expect(x, map[[2]string]float64{ // part-0 has 0.1 of 0.5, part-1 0.4
		{claimPower, "resourceclaim_name=a"}: 20. / 4, {claimPower, "resourceclaim_name=b"}: 60. / 4,
		{claimPower, "resourceclaim_name=c"}: 80,
		{podPower, "pod=p0"}:                 20, {podPower, "pod=p1"}: 60, {podPower, "pod=p2"}: 20,
		{claimEnergy, "resourceclaim_name=a"}: 40. / 4, {claimEnergy, "resourceclaim_name=b"}: 120. / 4,
		{claimEnergy, "resourceclaim_name=c"}: 160, {podEnergy, "pod=p1"}: 120, {podEnergy, "pod=p2"}: 40,
		{restEnergy, "device=gpu-0"}: 0, {restPower, "device=gpu-0"}: 0,
	})
}

// The holders of a whole parent get what its partitions do not. The use of a partition by processes
// of no holder is unattributed.
func TestPartitionsOfHeldParent(t *testing.T) {
	p := newPartitioned(t)
	p.Hold("whole", "p9")
	p.hold("part-1", "c2", "p2")
	p.In.PodOf = exportertest.PodOf()
	var x exportertest.Scraped
	for i := range 3 {
		p.read(100, 100*float64(i), -1, 0.8)
		p.run(exportertest.Process(2, 0.2, 1), exportertest.Process(4, 0.6, 1)) // PID 4 belongs to no holder
		x = p.Tick(time.Second)
	}
	// part-0 has its share, because its activity is unknown. part-1 has the rest, of which three
	// quarters are unattributed.
	p.Expect(x, map[[2]string]float64{
		{claimEnergy, "resourceclaim_name=c0"}: 50, {claimEnergy, "resourceclaim_name=c1"}: 150. / 4,
		{claimEnergy, "resourceclaim_name=whole"}: 0, {restEnergy, "device=gpu-0"}: 150 * 3. / 4,
		{claimPower, "resourceclaim_name=whole"}: 0, {restPower, "device=gpu-0"}: 75 * 3. / 4,
	})
	for range 2 {
		delete(p.In.Inventory, jointest.ID("part-1")) // and its holders with it
		p.Free("c1")
		p.Free("c2")
		p.read(100, 300)
		x = p.Tick(time.Second)
		p.Expect(x, map[[2]string]float64{
			{claimPower, "resourceclaim_name=c0"}: 25, {claimPower, "resourceclaim_name=whole"}: 75,
			{restPower, "device=gpu-0"}: 0,
		})
	}
}

// If the holder of a partition changes between two readings of the parent, each holder is charged
// for its time, at the partition's activity in that time.
func TestPartitionsChangeHands(t *testing.T) {
	p := newPartitioned(t)
	p.read(100, 0, 1, 1)
	p.Pass(time.Second)
	p.Changes = []podresources.Change{
		{At: p.Now.Add(-500 * time.Millisecond), CDI: []string{"example.com/gpu=c0"}, Gone: true},
		{At: p.Now.Add(-500 * time.Millisecond), CDI: []string{"example.com/gpu=next"}},
	}
	p.Free("c0")
	p.hold("part-0", "next", "p2")
	p.read(100, 80, 0, 1) // the activity of part-0 falls evenly: 0.75, then 0.25
	x := p.Tick(time.Second)
	p.Expect(x, map[[2]string]float64{
		{claimEnergy, "resourceclaim_name=c0"}:   40 * 0.75 / (0.75 + 2),
		{claimEnergy, "resourceclaim_name=next"}: 40 * 0.25 / (0.25 + 2),
		{claimEnergy, "resourceclaim_name=c1"}:   40*2/(0.75+2) + 40*2/(0.25+2),
	})
}

// If only energy is measured, the lowest rate while idle is the idle power.
func TestPartitionsWithoutPower(t *testing.T) {
	p := newPartitioned(t)
	joules := 0.0
	for _, second := range []struct{ joules, activity float64 }{{0, 0}, {100, 0}, {60, 0}, {200, 1}, {260, 1}} {
		joules += second.joules
		p.read(0, joules, second.activity, 0)
		p.Read(driver.Reading{Quantity: driver.Energy, Value: joules})
		p.Pass(time.Second)
	}
	joules += 160
	p.read(0, joules, 1, 0)
	p.Read(driver.Reading{Quantity: driver.Energy, Value: joules})
	before := p.Ledger
	x := p.Tick(time.Second)
	expect.That(t, before == p.Ledger && len(x[claimPower]) == 0, "power was not read: %v", x[claimPower])
	// 160 J while both were idle, then 200, 260 and 160 J while part-0 was active. 60 J of each are
	// idle.
	p.Expect(x, map[[2]string]float64{
		{claimEnergy, "resourceclaim_name=c0"}: (160.+3*60)/4 + 140 + 200 + 100,
		{claimEnergy, "resourceclaim_name=c1"}: (160. + 3*60) / 2,
	})
}

// A partition that measures its own power gets no part of the parent's from that time on.
func TestPartitionThatMeasuresItself(t *testing.T) {
	p := newPartitioned(t)
	own := func(watts float64) {
		p.ReadOf(
			"part-0", driver.Reading{Quantity: driver.Utilization, Value: 1},
			driver.Reading{Quantity: driver.Power, Value: watts},
		)
	}
	p.read(100, 0, 1, 1)
	p.Pass(time.Second)
	p.read(100, 90, 1, 1)
	x := p.Tick(time.Second)
	p.Expect(x, map[[2]string]float64{{claimEnergy, "resourceclaim_name=c0"}: 30})
	p.read(100, 190, 1, 1)
	own(7)
	p.Pass(time.Second)
	p.read(100, 290, 1, 1)
	own(7)
	x = p.Tick(time.Second)
	p.Expect(x, map[[2]string]float64{
		{claimPower, "resourceclaim_name=c0"}: 7, {"dra_device_power_watts", "device=part-0"}: 7,
		{claimEnergy, "resourceclaim_name=c0"}: 30 + 7, {"dra_device_energy_joules_total", "device=part-0"}: 30 + 7,
		{restEnergy, "device=part-0"}: 0, {restEnergy, "device=gpu-0"}: 200. / 3, {restPower, "device=gpu-0"}: 100. / 3,
	})
	expect.That(t, len(x.Matching(sourceInfo, "device=part-0", "quantity=energy")) == 1,
		"the sources are %v", x[sourceInfo])
}

// The energy that a partition used before it was removed is charged to its claim, no matter how
// late the reading of the parent comes. The partition is forgotten later.
func TestPartitionIsGone(t *testing.T) {
	p := newPartitioned(t)
	p.read(100, 0, 1, 1)
	p.Pass(time.Second)
	delete(p.In.Inventory, jointest.ID("part-0"))
	p.Free("c0")
	p.Watched = true // the claim ends at the first answer without it
	for range 40 {   // the parent has no new reading
		p.Pass(time.Second)
	}
	end := p.Now
	p.read(100, 4100, 0, 1)
	x := p.Tick(time.Second)
	p.Expect(x, map[[2]string]float64{
		{claimEnergy, "resourceclaim_name=c0"}: 100. / 3, // of the first second
		{claimEnergy, "resourceclaim_name=c1"}: 200./3 + 4000,
		{restEnergy, "device=gpu-0"}:           0,
	})
	_, _, held := p.Ledger.Sizes(jointest.ID("part-0"))
	expect.That(t, held != 0, "the ledger forgot the partition before the reading")
	for p.Now.Sub(end) < exportertest.Retention {
		p.read(100, 4100, 0, 1)
		p.Pass(10 * time.Second)
	}
	expect.Is(t, p.Ledger.Parts(jointest.ID("gpu-0")), 1, "partitions are remembered")
	expect.That(t, p.Ledger.Knows(jointest.ID("part-0")), "its record is forgotten too early")
	for range 2 {
		p.Pass(exportertest.Retention + 2*ledger.RememberFor)
	}
	expect.That(t, !p.Ledger.Knows(jointest.ID("part-0")), "its record is kept")
}

// A partition that is removed in the second in which its claim ends is charged until that end.
func TestPartitionIsGoneAtItsEnd(t *testing.T) {
	p := newPartitioned(t)
	p.read(100, 0, 1, 1)
	p.Pass(time.Second)
	p.Changes = []podresources.Change{
		{At: p.Now.Add(-500 * time.Millisecond), CDI: []string{"example.com/gpu=c0"}, Gone: true},
	}
	delete(p.In.Inventory, jointest.ID("part-0"))
	p.Free("c0")
	p.read(100, 80, 0, 1)
	p.Expect(p.Tick(time.Second), map[[2]string]float64{
		{claimEnergy, "resourceclaim_name=c0"}: 40. / 3, {claimEnergy, "resourceclaim_name=c1"}: 40*2./3 + 40,
		{restEnergy, "device=gpu-0"}: 0,
	})
}

// An ended claim of a partition gets its part of the parent's energy even if the parent can't be
// read until long after the claim's retention. Its series then appear again for another retention.
func TestPartitionIsChargedLate(t *testing.T) {
	p := newPartitioned(t)
	p.read(100, 0, 1, 1)
	p.Pass(time.Second)
	p.Free("c0")
	seconds := 1.5*exportertest.Retention.Seconds() + 1
	for range int(seconds) - 1 { // the parent has no new reading
		for _, name := range []string{"part-0", "part-1"} {
			p.ReadOf(name, driver.Reading{Quantity: driver.Utilization, Value: 1})
		}
		p.Pass(time.Second)
	}
	n := len(p.Tick(0).Matching(claimEnergy, "resourceclaim_name=c0"))
	must.That(t, n == 0, "%d series of a claim whose retention is over", n)
	p.read(100, 100*seconds, 1, 1)
	late := p.Tick(exportertest.Retention - time.Second)
	const part = 50. / 3 // a third of the first half second
	p.Expect(late, map[[2]string]float64{
		{claimEnergy, "resourceclaim_name=c0"}: part, {podEnergy, "pod=p0"}: part,
		{claimEnergy, "resourceclaim_name=c1"}: 100 * seconds * 2 / 3, {restEnergy, "device=gpu-0"}: 100*seconds/3 - part,
	})
	p.Expect(p.Tick(2*time.Second), map[[2]string]float64{{claimEnergy, "resourceclaim_name=c0"}: part})
	if x := p.Tick(time.Second); len(x.Matching(claimEnergy, "resourceclaim_name=c0")) != 0 {
		t.Errorf("a retention after its last charge: %v", x[claimEnergy])
	}
}

// While the new claim of a partition is pending, the readings of the parent wait.
func TestPartitionIsPending(t *testing.T) {
	p := newPartitioned(t)
	p.In.View.Allocations = nil
	p.read(100, 0, 1, 0)
	p.Pass(time.Second)
	p.hold("part-0", "late", "p0").Pending = true
	p.read(100, 100, 1, 0)
	if x := p.Tick(time.Second); len(x[claimEnergy]) != 0 {
		t.Errorf("a claim of which nothing is known has %v", x[claimEnergy])
	}
	p.In.View.Allocations[0].Pending = false
	p.read(100, 200, 1, 0)
	x := p.Tick(time.Second)
	p.Expect(x, map[[2]string]float64{ // it began in the middle of the first second
		{claimEnergy, "resourceclaim_name=late"}: 150, {restEnergy, "device=gpu-0"}: 50,
	})
}
