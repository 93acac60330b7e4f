package e2e

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/node"
)

// answering is an endpoint whose page a test changes. Each response is a step, for which a test can
// wait.
type answering struct {
	page  atomic.Pointer[func(step int) string]
	steps atomic.Int64
}

func (s *answering) set(page func(step int) string) { s.page.Store(&page) }

func (s *answering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	step := int(s.steps.Add(1))
	fixed((*s.page.Load())(step))(w, r)
}

// gateEndpoint is an endpoint with the metrics of these tests.
func gateEndpoint(url string) string {
	return node.Endpoint("vendor", url, gpuDriver, strings.Split(`name: power, quantity: power
name: energy_joules, quantity: energy
name: energy_millijoules, quantity: energy, scale: 0.001
name: temperature, quantity: temperature, labels: {sensor: gpu}
name: clock, quantity: clock, scale: 1e6, labels: {domain: sm}
name: used, quantity: memory_used, scale: 1048576
name: replays, quantity: errors, labels: {kind: pcie_replay}
name: corrected, quantity: errors, labels: {kind: ecc_corrected}
name: uncorrected, quantity: errors, labels: {kind: ecc_uncorrected}
name: remapped, quantity: errors, labels: {kind: row_remap}
name: xids, quantity: errors, labels: {kind: xid}
name: lifetime, quantity: lifetime_errors, labels: {kind: ecc_corrected}
name: violation, quantity: throttled_seconds, scale: 1e-9, labels: {reason: power}
name: limit, quantity: power_limit, labels: {limit: max}
name: lanes, quantity: link_width_max, labels: {link: pcie}
name: generation, quantity: link_generation_max, labels: {link: pcie}
name: traffic, quantity: io_bytes, labels: {link: pcie, direction: receive}
name: active, quantity: active_seconds`, "\n")...)
}

// gated starts the program with one held GPU, whose readings an endpoint serves.
func gated(t *testing.T, page func(step int) string) (*program, *answering) {
	s := &answering{}
	s.set(page)
	n := newNode(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	return start(t, n.flags(flags{
		"inventory.file":       n.inventory(gpus(1)),
		"source.scrape.config": n.scrapeConfig(gateEndpoint(vendor(t, s.ServeHTTP))),
	})), s
}

// after waits until the endpoint has responded n times more, and the program has used the last of
// these responses.
func (s *answering) after(p *program, n int64) {
	want := s.steps.Load() + n + 1
	p.eventually("more responses", func() bool { return s.steps.Load() >= want })
}

// joules returns the energy that the claim is charged.
func (p *program) joules() float64 {
	v, _ := p.scrape().value("dra_claim_energy_joules_total", "resourceclaim_name", "claim-a")
	return v
}

func (p *program) noIncidents() {
	incidents := p.incidents()
	expect.That(p.t, len(incidents) == 0, "incidents: %+v", incidents)
}

func (m metrics) rejected(quantity, reason string) bool {
	return m.positive("dra_exporter_input_rejected_total", "input", "scrape/vendor/"+quantity, "reason", reason)
}

// The energy of an idle card falls to 200 J for two seconds, as Level Zero has shown it, and
// returns. The claim is charged what the card has used.
func TestGateDropout(t *testing.T) {
	t.Parallel()
	const first, watts = 22_543_283.0, 52.0
	var low atomic.Int64 // responses that are still to be wrong
	var truth atomic.Int64
	page := func(step int) string {
		joules := watts * float64(step)
		truth.Store(int64(joules))
		if low.Add(-1) >= 0 {
			return fmt.Sprintf("energy_joules{uuid=%q} 200\n", uuid(0))
		}
		return fmt.Sprintf("energy_joules{uuid=%q} %v\n", uuid(0), first+joules)
	}
	p, s := gated(t, page)
	p.eventually("charged", func() bool { return p.joules() >= 2*watts })
	low.Store(2)
	s.after(p, 8)
	if got, most := p.joules(), float64(truth.Load()); got > most || got < 4*watts {
		t.Errorf("the claim is charged %v J, and the card has used %v J", got, most)
	}
	p.noIncidents()
}

// A counter that really restarts is charged from zero, and goes on.
func TestGateRestart(t *testing.T) {
	t.Parallel()
	var restarted atomic.Int64
	page := func(step int) string {
		if begin := restarted.Load(); begin > 0 {
			return fmt.Sprintf("energy_joules{uuid=%q} %v\n", uuid(0), 52*(float64(step)-float64(begin)))
		}
		return fmt.Sprintf("energy_joules{uuid=%q} %v\n", uuid(0), 1e6+52*float64(step))
	}
	p, s := gated(t, page)
	p.eventually("charged", func() bool { return p.joules() >= 2*52 })
	before := s.steps.Load()
	restarted.Store(before)
	s.after(p, 6)
	if got, least, most := p.joules(), 52*float64(before), 52*float64(s.steps.Load()); got < least || got > most {
		t.Errorf("the claim is charged %v J, want %v to %v", got, least, most)
	}
}

// While dcgm-exporter has no values, it prints DCGM's codes for that, also as counters. None
// becomes a value, nothing is left when the values are back, and nothing is an incident.
func TestGateCodes(t *testing.T) {
	t.Parallel()
	codes := []string{
		"2147483632", "2147483633", "2147483634", "2147483646", "9223372036854775792", "9223372036854775793",
		"9223372036854775806", "9.223372036854775807e+18", "140737488355328", "140737488355331", "4294967295",
		"18446744073709551615", "-1",
	}
	names := []string{
		"power", "energy_millijoules", "temperature", "clock", "used", "replays", "corrected", "uncorrected",
		"remapped", "xids", "lifetime", "violation",
	}
	var blank atomic.Int64 // position of the code plus one; 0: values
	page := func(step int) string {
		var b strings.Builder
		for _, name := range names {
			value := "7"
			switch i := blank.Load(); {
			case i > 0:
				value = codes[i-1]
			case name == "energy_millijoules":
				value = fmt.Sprint(5_000_000 + 7_000*step)
			}
			fmt.Fprintf(&b, "%s{uuid=%q} %s\n", name, uuid(0), value)
		}
		return b.String()
	}
	p, s := gated(t, page)
	p.eventually("read", func() bool { return p.scrape().is(7, "dra_device_power_watts", "device", "gpu-0") })
	for i := range codes {
		blank.Store(int64(i) + 1)
		s.after(p, 1)
	}
	m := p.scrape()
	m.wantNone("dra_device_power_watts")
	m.wantNone("dra_device_lifetime_errors")
	for _, q := range []string{"power", "energy", "errors", "lifetime_errors", "throttled_seconds", "memory_used"} {
		if !m.rejected(q, "no_value") {
			t.Errorf("nothing of %s was counted as no_value", q)
		}
	}
	blank.Store(0)
	p.eventually("values again", func() bool { return p.scrape().is(7, "dra_device_power_watts", "device", "gpu-0") })
	s.after(p, 1)
	m = p.scrape()
	if sum, n := m.sum("dra_device_errors_total"); sum != 0 || n != 5 {
		t.Errorf("%v errors of %d kinds, want 0 of 5", sum, n)
	}
	m.want(0, "dra_device_throttled_seconds_total", "device", "gpu-0", "reason", "power")
	m.want(7, "dra_device_lifetime_errors", "device", "gpu-0")
	if v, _ := m.value("dra_claim_energy_joules_total", "resourceclaim_name", "claim-a"); v > 7*float64(s.steps.Load()) {
		t.Errorf("the claim is charged %v J", v)
	}
	p.noIncidents()
}

// A device whose every value is impossible is not lost: its source answers.
func TestGateRubbish(t *testing.T) {
	t.Parallel()
	var rubbish atomic.Pointer[string]
	page := func(step int) string {
		power, energy := "50", fmt.Sprint(1e6+50*float64(step))
		if v := rubbish.Load(); v != nil {
			power, energy = *v, *v
		}
		return fmt.Sprintf("power{uuid=%[1]q} %[2]s\nenergy_joules{uuid=%[1]q} %[3]s\n", uuid(0), power, energy)
	}
	p, s := gated(t, page)
	p.eventually("read", func() bool { return p.scrape().is(50, "dra_device_power_watts", "device", "gpu-0") })
	for _, v := range []string{"NaN", "+Inf", "-Inf", "-5"} {
		rubbish.Store(&v)
		s.after(p, 2)
		m := p.scrape()
		m.want(0, "dra_device_up", "device", "gpu-0")
		m.want(1, "dra_exporter_unresolved_devices", "driver", gpuDriver, "reason", "rejected")
	}
	m := p.scrape()
	for _, reason := range []string{"not_finite", "negative"} {
		if !m.rejected("energy", reason) || !m.rejected("power", reason) {
			t.Errorf("nothing of power or energy was counted as %s", reason)
		}
	}
	rubbish.Store(nil)
	p.eventually("values again", func() bool { return p.scrape().is(1, "dra_device_up", "device", "gpu-0") })
	p.noIncidents()
	v := p.joules()
	if most := 50 * float64(s.steps.Load()); v > most || math.IsNaN(v) {
		t.Errorf("the claim is charged %v J, at most %v J are possible", v, most)
	}
}

// More than the device can do is not charged: joules above its power limit, bytes above the speed
// of its link, busy time above the time that has passed, and errors above any rate. What follows is
// charged again.
func TestGateLimits(t *testing.T) {
	t.Parallel()
	const watts, bytes, busy = 52.0, 1e6, 0.5 // in a step, which takes at least a second
	var jump atomic.Int64                     // 1: the counters have jumped
	page := func(step int) string {
		jumped, n := float64(jump.Load()), float64(step)
		page := "power{uuid=%[1]q} 52\nlimit{uuid=%[1]q} 300\nlanes{uuid=%[1]q} 4\ngeneration{uuid=%[1]q} 1\n" +
			"energy_joules{uuid=%[1]q} %[2]v\ntraffic{uuid=%[1]q} %[3]v\nactive{uuid=%[1]q} %[4]v\nreplays{uuid=%[1]q} %[5]v\n"
		return fmt.Sprintf(page, uuid(0), 1e6+watts*n+4e4*jumped, 1e9+bytes*n+2e12*jumped, 1e3+busy*n+1e3*jumped,
			7+1e7*jumped)
	}
	p, s := gated(t, page)
	charged := func(m metrics, what string) float64 {
		v, _ := m.value("dra_claim_"+what+"_total", "resourceclaim_name", "claim-a")
		return v
	}
	p.eventually("charged", func() bool { return charged(p.scrape(), "energy_joules") >= 2*watts })
	before := charged(p.scrape(), "energy_joules")
	jump.Store(1)
	s.after(p, 8)
	m, most := p.scrape(), float64(s.steps.Load())
	for what, rate := range map[string]float64{"energy_joules": watts, "io_bytes": bytes, "active_seconds": busy} {
		if got := charged(m, what); got <= 0 || got > rate*most {
			t.Errorf("%v of %s are charged, at most %v are true", got, what, rate*most)
		}
	}
	if after := charged(m, "energy_joules"); after < before+3*watts {
		t.Errorf("%v J are charged, and after eight more readings %v", before, after)
	}
	m.want(0, "dra_device_errors_total", "device", "gpu-0", "kind", "pcie_replay")
	for _, quantity := range []string{"energy", "io_bytes", "active_seconds", "errors"} {
		if !m.rejected(quantity, "rate") {
			t.Errorf("nothing of %s was counted as rate", quantity)
		}
		if n := strings.Count(p.Log(), "input=scrape/vendor/"+quantity+" reason=rate "); n != 1 {
			t.Errorf("the log has %d lines about %s", n, quantity)
		}
	}
	p.noIncidents()
}

// A card without a sensor of power and energy, of which another exporter prints 0, has no power, no
// energy and no peak, and neither has its claim.
func TestGateZero(t *testing.T) {
	t.Parallel()
	p, s := gated(t, func(int) string {
		return fmt.Sprintf("power{uuid=%[1]q} 0\nenergy_joules{uuid=%[1]q} 0\nclock{uuid=%[1]q} 0\nused{uuid=%[1]q} 0\n",
			uuid(0))
	})
	p.eventually("read", func() bool {
		return p.scrape().is(0, "dra_claim_memory_used_bytes", "resourceclaim_name", "claim-a")
	})
	s.after(p, 3)
	m := p.scrape()
	for _, family := range []string{
		"dra_device_power_watts", "dra_device_energy_joules_total", "dra_device_power_peak_watts", "dra_device_clock_hertz",
		"dra_claim_power_watts", "dra_claim_energy_joules_total", "dra_claim_power_peak_watts", "dra_pod_energy_joules_total",
	} {
		m.wantNone(family)
	}
	if !m.rejected("power", "zero") || !m.rejected("energy", "zero") {
		t.Error("the zeros were not counted")
	}
}
