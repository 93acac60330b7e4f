package recorder

import (
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

type trace func(at time.Duration, random *rand.Rand) moment

// healthy are traces on which there must be no alarm.
func healthy() map[string]trace {
	return map[string]trace{
		// Every half an hour all ranks save a checkpoint: one writes, the others wait for it, spinning,
		// for up to four minutes.
		"training with checkpoints": func(at time.Duration, _ *rand.Rand) moment {
			if in := at % (30 * time.Minute); at > 20*time.Minute && in < 4*time.Minute {
				return spinning()
			}
			return training()
		},
		"inference with bursts": func(at time.Duration, random *rand.Rand) moment {
			switch in := at % (17 * time.Second); {
			case in < time.Duration(4+random.IntN(9))*time.Second:
				return decoding()
			default:
				return idle()
			}
		},
		// By day the GPU is always busy, at night a few requests keep it at 92 % and 120 W; its memory is
		// read all the same.
		"inference by day and night": func(at time.Duration, _ *rand.Rand) moment {
			if at%(24*time.Hour) > 14*time.Hour {
				return moment{0.92, 120, 0.02, 0.3, 5e7}
			}
			return decoding()
		},
		"data loading stalls": func(at time.Duration, _ *rand.Rand) moment {
			switch in := at % (11 * time.Minute); {
			case in < 90*time.Second:
				return spinning() // other ranks have their data already
			case in < 3*time.Minute:
				return idle()
			default:
				return training()
			}
		},
		// The model is compiled for a quarter of an hour, at full utilization and low power.
		"warm-up": func(at time.Duration, _ *rand.Rand) moment {
			if at < 15*time.Minute {
				return moment{1, 150, 0.01, 0.03, 1e6}
			}
			return training()
		},
		"a notebook": func(at time.Duration, random *rand.Rand) moment {
			if at%time.Hour < time.Duration(random.IntN(20))*time.Minute {
				return training()
			}
			return idle()
		},
		"training, then a light evaluation": func(at time.Duration, _ *rand.Rand) moment {
			if at%(4*time.Hour) > 3*time.Hour {
				return moment{0.95, 200, 0.08, 0.25, 1e8}
			}
			return training()
		},
	}
}

// player gives the moments of a trace to the detector, with noise, as snapshots of one claim.
type player struct {
	detector stalls
	device   ledger.Device
	claim    ledger.Holder
	random   *rand.Rand
	now      time.Time
	without  map[driver.Quantity]bool
}

func newPlayer(without ...driver.Quantity) *player {
	p := &player{
		detector: stalls{}, random: rand.New(rand.NewPCG(3, 4)), now: jointest.Start(), without: map[driver.Quantity]bool{},
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

// set lets a second pass, after which the device does what the moment says.
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
			v.Value += max(0, noise(m.links))
		}
	}
	p.now = p.now.Add(time.Second)
}

// No healthy trace of 24 hours has an alarm, and of each there is an answer most of the time.
func TestNoFalseAlarms(t *testing.T) {
	for name, does := range healthy() {
		t.Run(name, func(t *testing.T) {
			p := newPlayer()
			known := 0
			for at := time.Duration(0); at < 24*time.Hour; at += time.Second {
				reason, answer := p.tick(does(at, p.random))
				if reason != "" {
					t.Fatalf("it is said to be stalled after %v: %s", at, reason)
				}
				if answer {
					known++
				}
			}
			t.Logf("there is an answer in %.0f %% of the time", float64(known)/864)
		})
	}
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
	if after := found - begin; after < stalledAfter*time.Minute || after > 7*time.Minute {
		t.Errorf("the hang is found after %v", after)
	}
	if after := over - end; after < 0 || after > 2*time.Minute {
		t.Errorf("the hang is over after %v", after)
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
