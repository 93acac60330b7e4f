package exporter

import (
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// history leads a ledger by hand through the life of one device, gpu-0, and of what a test adds.
type history struct {
	t      *testing.T
	ledger *Ledger
	now    time.Time
	in     Input
	last   *Snapshot
	joined Result
}

func newHistory(t *testing.T) *history {
	t.Helper()
	return &history{t: t, ledger: NewLedger(testConfig()), now: unixTime(), in: Input{
		Inventory: driver.Inventory{simID("gpu-0"): {Hardware: driver.Hardware{UUID: "gpu-0"}}},
		Sources:   []SourceSamples{{Name: "a"}},
	}}
}

// tick takes the input into the ledger, with an answer of the kubelet of now, and lets time pass afterwards.
func (h *history) tick(pause time.Duration) exposition {
	h.t.Helper()
	h.in.View.At = h.now
	return h.tickWithoutAnswer(pause)
}

// tickWithoutAnswer is a tick at which the kubelet's last answer is still that of before.
func (h *history) tickWithoutAnswer(pause time.Duration) exposition {
	h.t.Helper()
	h.joined = Join(h.in)
	h.last = h.ledger.Advance(h.joined, h.now)
	h.now = h.now.Add(pause)
	return scrape(h.t, h.last)
}

// read replaces gpu-0's readings of the first source. Those without a time are of now.
func (h *history) read(readings ...driver.Reading) { h.readOf("gpu-0", readings...) }

// readOf replaces a device's readings of the first source.
func (h *history) readOf(uuid string, readings ...driver.Reading) {
	readings = slices.Clone(readings)
	for i := range readings {
		if readings[i].At.IsZero() {
			readings[i].At = h.now
		}
	}
	samples := slices.DeleteFunc(slices.Clone(h.in.Sources[0].Samples), func(s driver.Sample) bool { return s.Hardware.UUID == uuid })
	samples = append(samples, driver.Sample{Hardware: driver.Hardware{UUID: uuid}, Readings: readings})
	h.in.Sources[0].Samples = samples
}

// energy reads gpu-0's energy counter.
func (h *history) energy(joules float64) {
	h.read(driver.Reading{Quantity: driver.Energy, Value: joules})
}

// hold gives gpu-0 to a claim with the given pods.
func (h *history) hold(claim string, pods ...string) *podresources.Allocation {
	h.free(claim)
	h.in.View.Allocations = append(h.in.View.Allocations, allocationOf("gpu-0", claim, pods...))
	return &h.in.View.Allocations[len(h.in.View.Allocations)-1]
}

func allocationOf(device, claim string, pods ...string) podresources.Allocation {
	a := podresources.Allocation{
		Claim: podresources.Claim{Namespace: "team", Name: claim}, Device: simID(device), CDI: []string{"example.com/gpu=" + claim},
	}
	for _, p := range pods {
		a.Holders = append(a.Holders, podresources.Holder{Pod: podresources.Pod{Namespace: "team", Name: p}, Container: "main", UID: "uid-" + p})
	}
	return a
}

// free takes all devices from a claim.
func (h *history) free(claim string) {
	h.in.View.Allocations = slices.DeleteFunc(slices.Clone(h.in.View.Allocations), func(a podresources.Allocation) bool { return a.Claim.Name == claim })
}

// values checks series by family and one label.
func (h *history) values(x exposition, want map[[2]string]float64) {
	h.t.Helper()
	for key, v := range want {
		if got := x.one(h.t, key[0], key[1]); !closeTo(got, v, 0) {
			h.t.Errorf("%s{%s} is %v, want %v", key[0], key[1], got, v)
		}
	}
}
