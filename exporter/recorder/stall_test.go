package recorder

import (
	"cmp"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// moment is what a GPU does: shares of time, watts, and bytes per second.
type moment struct{ busy, power, tensor, dram, links float64 }

// The levels are those of an H100: 70 W idle, 650 W in training, about 130 W while NCCL's kernels
// spin.
func idle() moment     { return moment{0, 70, 0, 0, 1e3} }
func training() moment { return moment{0.99, 640, 0.55, 0.45, 4e10} }
func spinning() moment { return moment{1, 130, 0, 0.01, 2e4} }
func decoding() moment { return moment{0.97, 380, 0.12, 0.7, 3e8} }

// One sequence alone: the device waits for its memory, and the other signals fall.
func sequence() moment { return moment{0.98, 160, 0.01, 0.55, 5e6} }

// trace is what a healthy claim does. Of known, the part of the time, there must be an answer. Most
// traces come close to an alarm: in some busy window some signals are low, or all of them are, for
// a time that is too short. So each proves something of the rule.
type trace struct {
	does    func(at time.Duration, random *rand.Rand) moment
	known   float64
	someLow bool
	allLow  bool
}

// healthy are traces on which there must be no alarm.
func healthy() map[string]trace {
	return map[string]trace{
		// Every half an hour all ranks save a checkpoint: one writes, the others wait for it, spinning,
		// for up to four minutes.
		"training with checkpoints": {known: 0.99, allLow: true, does: func(at time.Duration, _ *rand.Rand) moment {
			if in := at % (30 * time.Minute); at > 20*time.Minute && in < 4*time.Minute {
				return spinning()
			}
			return training()
		}},
		// The server is busy all the time: bursts of requests are decoded as one batch, and between them
		// one sequence at a time. For a quarter of each hour there are no bursts.
		"inference with bursts": {known: 0.99, someLow: true, does: func(at time.Duration, random *rand.Rand) moment {
			burst := time.Duration(4+random.IntN(9)) * time.Second
			if at%time.Hour < 45*time.Minute && at%(17*time.Second) < burst {
				return decoding()
			}
			return sequence()
		}},
		// The device is idle between the bursts: no minute is busy, and there is no baseline.
		"inference with pauses": {does: func(at time.Duration, random *rand.Rand) moment {
			if at%(17*time.Second) < time.Duration(4+random.IntN(9))*time.Second {
				return decoding()
			}
			return idle()
		}},
		// By day the GPU is always busy, at night a few requests keep it at 92 % and 120 W; its memory is
		// read all the same.
		"inference by day and night": {known: 0.99, someLow: true, does: func(at time.Duration, _ *rand.Rand) moment {
			if at%(24*time.Hour) > 14*time.Hour {
				return moment{0.92, 120, 0.02, 0.3, 5e7}
			}
			return decoding()
		}},
		"data loading stalls": {known: 0.98, allLow: true, does: func(at time.Duration, _ *rand.Rand) moment {
			switch in := at % (11 * time.Minute); {
			case in < 90*time.Second:
				return spinning() // other ranks have their data already
			case in < 3*time.Minute:
				return idle()
			default:
				return training()
			}
		}},
		// The model is compiled for a quarter of an hour, at full utilization and low power. After
		// a day's half it is compiled again, for four minutes.
		"warm-up": {known: 0.99, allLow: true, does: func(at time.Duration, _ *rand.Rand) moment {
			if at < 15*time.Minute || at > 12*time.Hour && at < 12*time.Hour+4*time.Minute {
				return moment{1, 150, 0.01, 0.03, 1e6}
			}
			return training()
		}},
		"a notebook": {known: 0.9, does: func(at time.Duration, random *rand.Rand) moment {
			if at%time.Hour < time.Duration(random.IntN(20))*time.Minute {
				return training()
			}
			return idle()
		}},
		"training, then a light evaluation": {known: 0.99, someLow: true, does: func(at time.Duration, _ *rand.Rand) moment {
			if at%(4*time.Hour) > 3*time.Hour {
				return moment{0.95, 200, 0.08, 0.25, 1e8}
			}
			return training()
		}},
	}
}

// player gives the moments of a trace to the detector, with noise, as snapshots of one claim.
type player struct {
	detector *stalls
	device   ledger.Device
	claim    ledger.Holder
	random   *rand.Rand
	now      time.Time
	interval time.Duration
	without  map[driver.Quantity]bool
}

func newPlayer(without ...driver.Quantity) *player {
	p := &player{
		detector: newStalls(0, time.Second), random: rand.New(rand.NewPCG(3, 4)), now: jointest.Start(),
		interval: time.Second, without: map[driver.Quantity]bool{},
		device: ledger.Device{Device: &join.Device{ID: jointest.ID("gpu-0"), Attribution: join.AttributionExclusive}},
		claim:  ledger.Holder{HolderKey: &ledger.HolderKey{Name: "claim", Device: jointest.ID("gpu-0")}},
	}
	for _, q := range without {
		p.without[q] = true
	}
	add := func(to *[]ledger.Value, q driver.Quantity, label string) {
		if !p.without[q] {
			*to = append(*to, ledger.Value{Series: &ledger.Series{Quantity: q, Labels: driver.Labels{label}}})
		}
	}
	add(&p.device.Values, driver.EngineUtilization, "tensor")
	add(&p.device.Values, driver.EngineUtilization, "dram")
	add(&p.claim.Values, driver.Utilization, "")
	add(&p.claim.Values, driver.Power, "")
	add(&p.claim.Values, driver.IOBytes, "nvlink")
	return p
}

// tick returns whether the claim is known to be stalled, and why.
func (p *player) tick(m moment) (reason string, known bool) {
	p.set(m)
	reason, known = p.detector.observe(p.snapshot())[p.claim.HolderKey]
	return reason, known
}

func (p *player) snapshot() *ledger.Snapshot {
	return &ledger.Snapshot{Time: p.now, Devices: []ledger.Device{p.device}, Claims: []ledger.Holder{p.claim}}
}

// set lets an interval pass, after which the device does what the moment says.
func (p *player) set(m moment) {
	noise := func(v float64) float64 { return v * (1 + 0.03*p.random.NormFloat64()) }
	for i := range p.device.Values {
		v := &p.device.Values[i]
		v.Value = map[string]float64{"tensor": noise(m.tensor), "dram": noise(m.dram)}[v.Labels[0]]
	}
	for i := range p.claim.Values {
		switch v := &p.claim.Values[i]; v.Quantity {
		case driver.Utilization:
			v.Value = min(1, noise(m.busy))
		case driver.Power:
			v.Value = noise(m.power)
		default:
			v.Value += max(0, noise(m.links)) * p.interval.Seconds()
		}
	}
	p.now = p.now.Add(p.interval)
}

// No healthy trace of 24 hours has an alarm.
func TestNoFalseAlarms(t *testing.T) {
	for name, trace := range healthy() {
		t.Run(name, func(t *testing.T) {
			p := newPlayer()
			known, someLow, allLow := 0, 0, 0
			for at := time.Duration(0); at < 24*time.Hour; at += time.Second {
				reason, answer := p.tick(trace.does(at, p.random))
				if reason != "" {
					t.Fatalf("it is said to be stalled after %v: %s", at, reason)
				}
				if !answer {
					continue
				}
				known++
				switch low, of := p.busyWindow(); {
				case of > 0 && low == of:
					allLow++
				case low > 0:
					someLow++
				}
			}
			part := float64(known) / 86400
			t.Logf("there is an answer in %.1f %% of the time; some signals are low in %d windows, all in %d",
				100*part, someLow, allLow)
			if part < trace.known || trace.someLow && someLow == 0 || trace.allLow && allLow == 0 {
				t.Error("the trace comes no closer to an alarm")
			}
		})
	}
}

// busyWindow returns, at the end of a busy window, how many signals are low, of how many.
func (p *player) busyWindow() (low, of int) {
	d := p.detector
	book := d.books[p.claim.HolderKey]
	if book == nil || p.now.Sub(book.began) < d.window-time.Second {
		return 0, 0
	}
	if busy, measured := book.busy.value(d.enough); !measured || busy < busyFrom {
		return 0, 0
	}
	names, of := book.lowSignals(d.enough)
	return len(names), of
}

// A hang after an hour of training is found after five to seven minutes, and over when the job goes
// on.
func TestHang(t *testing.T) {
	const begin, end = time.Hour, 90 * time.Minute
	p := newPlayer()
	var found, over time.Duration
	for at := time.Duration(0); at < 2*time.Hour; at += time.Second {
		m := training()
		if begin <= at && at < end {
			m = spinning()
		}
		reason, known := p.tick(m)
		if at > 10*time.Minute && !known {
			t.Fatalf("there is no answer after %v", at)
		}
		switch {
		case reason != "" && found == 0:
			found = at
			if reason != "power,engines,memory_traffic,links" {
				t.Errorf("the reason is %s", reason)
			}
		case reason == "" && found != 0 && over == 0:
			over = at
		}
	}
	if after := found - begin; after < DefaultStalledAfter || after > 7*time.Minute {
		t.Errorf("the hang is found after %v", after)
	}
	if after := over - end; after < 0 || after > 2*time.Minute {
		t.Errorf("the hang is over after %v", after)
	}
}

// A hang is found at any interval of sampling, and sooner where less time is asked for.
func TestHangAtOtherIntervals(t *testing.T) {
	for _, test := range []struct{ interval, after, latest time.Duration }{
		{10 * time.Second, 0, 7 * time.Minute},
		{time.Minute, 0, 7 * time.Minute},
		{time.Second, time.Minute, 85 * time.Second},
	} {
		p := newPlayer()
		p.detector, p.interval = newStalls(test.after, test.interval), test.interval
		const begin = time.Hour
		found := time.Duration(0)
		for at := time.Duration(0); found == 0 && at < 2*time.Hour; at += test.interval {
			m := training()
			if at >= begin {
				m = spinning()
			}
			if reason, _ := p.tick(m); reason != "" {
				found = at - begin
			}
		}
		if found < cmp.Or(test.after, DefaultStalledAfter) || found > test.latest {
			t.Errorf("every %v, with %v: found after %v", test.interval, test.after, found)
		}
	}
}

// Without power, or with power alone, there is no answer; neither is there for a device that is
// shared.
func TestNotEnoughIsMeasured(t *testing.T) {
	shared := newPlayer()
	shared.device.Device = &join.Device{ID: jointest.ID("gpu-0"), Attribution: join.AttributionEqual}
	for name, p := range map[string]*player{
		"power alone":   newPlayer(driver.EngineUtilization, driver.IOBytes),
		"no power":      newPlayer(driver.Power),
		"no activity":   newPlayer(driver.Utilization),
		"shared device": shared,
	} {
		for at := time.Duration(0); at < time.Hour; at += time.Second {
			m := training()
			if at > 30*time.Minute {
				m = spinning()
			}
			if _, known := p.tick(m); known {
				t.Errorf("%s: there is an answer after %v", name, at)
				break
			}
		}
	}
}

// A claim that begins to stall is an incident, once, and the news have it at each tick.
func TestStallIsAnIncident(t *testing.T) {
	p, r := newPlayer(), New(Config{Interval: time.Second})
	p.device.Key = &p.device.ID
	opened, stalled := 0, 0
	for at := time.Duration(0); at < 20*time.Minute; at += time.Second {
		m := training()
		if at > 10*time.Minute {
			m = spinning()
		}
		p.set(m)
		news := r.Record(p.snapshot())
		for _, i := range news.Opened {
			if opened++; i.Kind != ClaimStalled || i.Code != "power,engines,memory_traffic,links" {
				t.Errorf("the incident is %+v", i)
			}
		}
		if news.Stalled[p.claim.HolderKey] != "" {
			stalled++
		}
	}
	if opened != 1 || stalled < 120 {
		t.Errorf("%d incidents, stalled for %d s", opened, stalled)
	}
}
