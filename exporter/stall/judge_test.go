package stall_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/stall"
)

const day = 24 * time.Hour

// healthyJob is a job that never hangs. Of known, a part of the time, there must be a judgement on
// all of its ranks: a judge that knows nothing raises no alarms either.
type healthyJob struct {
	ranks []rank
	known float64
}

// healthyJobs are the jobs on which there must be no alarm in a day.
func healthyJobs() map[string]healthyJob {
	waits := does(spinning)
	train := does(training)
	compiling := does(func() moment { return light(1, 150, 0.01, 0.03, 1e6) })
	environment := does(func() moment { return light(0.98, 125, 0.004, 0.02, 3e6) })
	return map[string]healthyJob{
		"training with checkpoints": {ranks(1, train.each(30*time.Minute, 4*time.Minute, waits)), 0.99},
		// The server is busy all the time: bursts of requests are decoded as one batch, and between
		// them one sequence at a time.
		"inference with bursts": {ranks(1, func(at time.Duration, random *rand.Rand) moment {
			burst := time.Duration(4+random.IntN(9)) * time.Second
			if at%time.Hour < 45*time.Minute && at%(17*time.Second) < burst {
				return decoding()
			}
			return light(0.98, 160, 0.01, 0.55, 5e6)
		}), 0.99},
		"inference with pauses": {ranks(1, func(at time.Duration, random *rand.Rand) moment {
			if at%(17*time.Second) < time.Duration(4+random.IntN(9))*time.Second {
				return decoding()
			}
			return idle()
		}), 0.99},
		"inference by day and night": {ranks(1, does(decoding).from(14*time.Hour, does(func() moment {
			return light(0.92, 120, 0.02, 0.3, 5e7)
		}))), 0.99},
		"data loading": {ranks(1, func(at time.Duration, random *rand.Rand) moment {
			switch in := at % (11 * time.Minute); {
			case in < 90*time.Second:
				return spinning() // other ranks have their data already
			case in < 3*time.Minute:
				return idle()
			default:
				return training()
			}
		}), 0.98},
		"bound by data loading": {ranks(1, func(at time.Duration, random *rand.Rand) moment {
			if at%(20*time.Second) < 17*time.Second {
				return light(0.97, 150, 0.01, 0.02, 3e7) // batches arrive, one by one
			}
			return training()
		}), 0.99},
		"bound by data loading after a shuffle": {ranks(1, train.each(2*time.Hour, 25*time.Minute, does(func() moment {
			return light(0.98, 140, 0.004, 0.02, 8e6)
		}))), 0.99},
		// The model is compiled for a quarter of an hour, at full utilization and low power, and
		// again, hours later, for ten minutes.
		"a recompile": {
			ranks(1, compiling.from(15*time.Minute, train.each(12*time.Hour, 10*time.Minute, compiling))), 0.99,
		},
		"a longer recompile, of which nothing but power is seen": {
			ranks(1, waits.from(7*time.Minute, train.each(12*time.Hour, 10*time.Minute, waits))), 0.9,
		},
		"a notebook": {ranks(1, func(at time.Duration, random *rand.Rand) moment {
			if at%time.Hour < time.Duration(random.IntN(20))*time.Minute {
				return training()
			}
			return idle()
		}), 0.9},
		"a notebook whose kernels become small": {ranks(1, does(func() moment {
			return light(0.96, 300, 0.2, 0.3, 5e7)
		}).from(14*time.Hour, does(func() moment { return light(0.93, 105, 0, 0.01, 1e5) }))), 0.99},
		"a notebook whose kernels become small, without pauses": {ranks(1, does(func() moment {
			return light(0.99, 300, 0.2, 0.3, 5e7)
		}).from(14*time.Hour, does(func() moment { return light(0.99, 115, 0, 0.012, 4e6) }))), 0.99},
		"reinforcement learning": {ranks(1, train.each(25*time.Minute, 12*time.Minute, environment)), 0.99},
		"reinforcement learning, on one GPU in all of its memory": {
			ranks(1, train.each(25*time.Minute, 6*time.Minute, waits)), 0.99,
		},
		"video decoding after training": {ranks(1, train.from(125*time.Minute, does(func() moment {
			return moment{busy: 1, power: 120, memory: 0.012, media: 0.9, host: 1e5}
		}))), 0.99},
		"throttling": {ranks(1, train.each(3*time.Hour, 40*time.Minute, does(func() moment {
			return moment{busy: 1, power: 190, compute: 0.06, memory: 0.06, fabric: 3e9, host: 1e7, throttled: true}
		}))), 0.99},
		"throttled to next to nothing": {ranks(1, train.each(3*time.Hour, 40*time.Minute, does(func() moment {
			return moment{busy: 1, power: 120, memory: 0.01, throttled: true}
		}))), 0.8},
		"uploads by one rank": {
			append(ranks(1, uploads(train, does(idle))), ranks(7, uploads(train, waits))...), 0.99,
		},
		"uploads by a rank that is elsewhere": {ranks(1, uploads(train, waits)), 0.99},
		"uploads through the network device": {ranks(1, train.each(2*time.Hour, 30*time.Minute, does(func() moment {
			m := spinning()
			m.network = 4e8
			return m
		}))), 0.99},
		"evaluation by one rank": {append(
			ranks(1, train.each(2*time.Hour, 12*time.Minute, does(decoding))),
			ranks(7, train.each(2*time.Hour, 12*time.Minute, waits))...,
		), 0.9},
		"evaluation by one of two ranks": {append(
			ranks(1, train.each(2*time.Hour, 12*time.Minute, does(decoding))),
			ranks(1, train.each(2*time.Hour, 12*time.Minute, waits))...,
		), 0.9},
		"evaluation by a rank that is elsewhere": {ranks(1, train.each(2*time.Hour, 12*time.Minute, waits)), 0.9},
		"training, then a light evaluation": {ranks(1, train.each(4*time.Hour, time.Hour, does(func() moment {
			return light(0.95, 200, 0.08, 0.25, 1e8)
		}))), 0.99},
	}
}

// uploads has one of 4.5 to 7 minutes every half an hour.
func uploads(train, then rank) rank {
	return func(at time.Duration, random *rand.Rand) moment {
		n := int(at / (30 * time.Minute))
		length := time.Duration(270+n*37%151) * time.Second
		if at >= 30*time.Minute && at%(30*time.Minute) < length {
			return then(at, random)
		}
		return train(at, random)
	}
}

// No healthy job has an alarm within a day, and on most of that there is a judgement.
func TestHealthyJobs(t *testing.T) {
	for name, job := range healthyJobs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlayer(job.ranks)
			known := p.quietDay(t)
			t.Logf("there is a judgement on %.1f %% of the time", 100*known)
			if known < job.known {
				t.Errorf("there is a judgement on %.1f %% of the time, want %.0f %%", 100*known, 100*job.known)
			}
		})
	}
}

// quietDay plays a day, in which there must be no alarm, and returns on what part of it there is a
// judgement on all ranks.
func (p *player) quietDay(t *testing.T) float64 {
	t.Helper()
	known := 0
	for at := time.Duration(0); at < day; at += p.interval {
		unknown := 0
		for _, v := range p.tick(at) {
			if v.Stalled != nil {
				t.Fatalf("after %v it is said to be stalled: %s, for %v", at, v.Why(), v.For)
			}
			if v.Unknown != stall.Known {
				unknown++
			}
		}
		if unknown == 0 {
			known++
		}
	}
	return float64(known) / (float64(day) / float64(p.interval))
}

// Without engines light work and a hang look alike: there is no alarm, and no judgement.
func TestHealthyJobsWithoutEngines(t *testing.T) {
	engines := []stall.Signal{stall.Compute, stall.Memory, stall.Copy, stall.Media}
	jobs := healthyJobs()
	var (
		atNight = does(func() moment { return light(0.99, 120, 0.02, 0.3, 5e5) })
		rollout = does(func() moment { return light(0.98, 180, 0.05, 0.3, 1e4) })
		embeds  = does(func() moment { return light(1, 150, 0.1, 0.2, 1e5) })
	)
	for name, r := range map[string]rank{
		"inference at night": does(decoding).from(14*time.Hour, atNight),
		"rollouts":           does(training).each(time.Hour, 20*time.Minute, rollout),
		"embedding":          does(training).from(2*time.Hour, embeds),
	} {
		jobs[name] = healthyJob{ranks: ranks(1, r)}
	}
	for name, job := range jobs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if known := newPlayer(job.ranks, engines...).quietDay(t); known > 0 {
				t.Errorf("there is a judgement on %v of the time", known)
			}
		})
	}
}

// hang is a job that hangs at a time.
type hang struct {
	ranks []rank
	card  card
	begin time.Duration
	// found are the ranks that must have an alarm ten minutes later. The others must have none; a
	// reason, if required, must be unknown.
	found   []int
	unknown stall.Reason
}

func hangs() map[string]hang {
	train, waits := does(training), does(spinning)
	after := func(begin time.Duration, r rank) rank { return r.from(begin, waits) }
	alone := func(r rank) rank { // without a fabric
		return func(at time.Duration, random *rand.Rand) moment {
			m := r(at, random)
			m.fabric = 0
			return m
		}
	}
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	const begin = time.Hour
	loading := func(at time.Duration, _ *rand.Rand) moment { // busy for 80 % of the time
		if at%(10*time.Second) < 2*time.Second {
			return idle()
		}
		return training()
	}
	decay := func(at time.Duration, _ *rand.Rand) moment {
		left := max(0, 1-float64(at)/float64(6*time.Hour))
		from, to := training(), spinning()
		mix := func(a, b float64) float64 { return b + left*(a-b) }
		return moment{
			busy: 1, power: mix(from.power, to.power), compute: mix(from.compute, to.compute),
			memory: mix(from.memory, to.memory), host: mix(from.host, to.host),
		}
	}
	return map[string]hang{
		"of all ranks":     {ranks(8, after(begin, train)), h100(), begin, all, stall.Known},
		"of a rank alone":  {append(ranks(1, after(begin, train)), ranks(7, train)...), h100(), begin, []int{0}, stall.Known},
		"at start-up":      {ranks(1, waits), h100(), 0, []int{0}, stall.Known},
		"of all at start":  {ranks(8, waits), h100(), 0, all, stall.Known},
		"of a single GPU":  {ranks(1, after(begin, alone(train))), h100(), begin, []int{0}, stall.Known},
		"of a job at 80 %": {ranks(1, after(begin, alone(loading))), h100(), begin, []int{0}, stall.Known},
		"of a capped card": {ranks(1, after(begin, alone(train))), capped(), begin, []int{0}, stall.Known},
		"of an L4":         {ranks(1, after(begin, alone(train))), l4(), begin, []int{0}, stall.Known},
		"of a job that waits for its checkpoints": {
			ranks(1, after(begin, alone(train.each(15*time.Minute, 4*time.Minute, waits)))), h100(), begin,
			[]int{0},
			stall.Known,
		},
		"after hours of decay": {ranks(1, decay), h100(), 6 * time.Hour, []int{0}, stall.Known},
		"while one rank does nothing": {
			append(ranks(1, train.from(begin, does(idle))), ranks(7, after(begin, train))...), h100(), begin, all[1:],
			stall.Known,
		},
		"of a rank whose peers are elsewhere": {ranks(1, after(begin, train)), h100(), begin, nil, stall.RanksUnseen},
		"while one rank works": {
			append(ranks(1, train), ranks(7, after(begin, train))...), h100(), begin, nil, stall.RankWorks,
		},
	}
}

// A hang is found within ten minutes, or has no judgement then, and a reason. It is over when the
// job continues.
func TestHangs(t *testing.T) {
	for name, h := range hangs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resumed := does(training)
			for i := range h.ranks {
				h.ranks[i] = h.ranks[i].from(h.begin+time.Hour, resumed)
			}
			p := newPlayer(h.ranks)
			p.card = h.card
			at := time.Duration(0)
			play := func(until time.Duration) []stall.Verdict {
				var last []stall.Verdict
				for ; at < until; at += time.Second {
					last = p.tick(at)
					if at < h.begin+4*time.Minute && alarms(last) > 0 {
						t.Fatalf("after %v it is said to be stalled", at)
					}
				}
				return last
			}
			verdicts := play(h.begin + 10*time.Minute)
			if alarms(verdicts) != len(h.found) {
				t.Errorf("after ten minutes there are %d alarms, want %d: %v", alarms(verdicts), len(h.found), verdicts)
			}
			for _, i := range h.found {
				if got := verdicts[i].Why(); got != "power,engines,memory_traffic,copies,media,pcie,fabric" {
					t.Errorf("rank %d: the signals are %q", i, got)
				}
			}
			if v := verdicts[len(verdicts)-1]; v.Unknown != h.unknown {
				t.Errorf("after ten minutes the judgement is %v, want the reason %q", v, h.unknown)
			}
			if h.unknown != stall.Known && alarms(play(h.begin+40*time.Minute)) == 0 {
				t.Error("it is not found at all")
			}
			if last := play(h.begin + 62*time.Minute); alarms(last) > 0 || last[0].Unknown != stall.Known {
				t.Errorf("two minutes after the job went on: %v", last)
			}
		})
	}
}

func alarms(verdicts []stall.Verdict) int {
	n := 0
	for _, v := range verdicts {
		if v.Stalled != nil {
			n++
		}
	}
	return n
}

// If a signal is not measured, the judgement is unknown, never 0.
func TestNotMeasured(t *testing.T) {
	for name, tc := range map[string]struct {
		without []stall.Signal
		edit    func(r *stall.Reading)
		want    stall.Reason
	}{
		"utilization": {[]stall.Signal{stall.Busy}, nil, stall.NoBusy},
		"power":       {[]stall.Signal{stall.Power}, nil, stall.NoPower},
		"engines":     {[]stall.Signal{stall.Compute, stall.Memory}, nil, stall.NoEngines},
		"a partition": {nil, func(r *stall.Reading) { r.Unknown = stall.Part }, stall.Part},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlayer(ranks(1, does(training).from(30*time.Minute, does(spinning))), tc.without...)
			if tc.edit != nil {
				tc.edit(&p.readings[0])
			}
			for at := time.Duration(0); at < time.Hour; at += time.Second {
				v := p.tick(at)[0]
				if v.Stalled != nil || v.Unknown != tc.want && v.Unknown != stall.TooShort ||
					at > time.Minute && v.Unknown != tc.want {
					t.Fatalf("after %v: %+v, want the reason %s", at, v, tc.want)
				}
			}
		})
	}
}

// A claim that never worked, on a device without a limit that is known, has no level to which its
// power could be compared; and without links the launches of small kernels are not seen.
func TestNoReference(t *testing.T) {
	noLimit := newPlayer(ranks(1, does(spinning)))
	noLimit.card.limit, noLimit.card.most = 0, 0
	for name, p := range map[string]*player{
		"no limit": noLimit, "no links": newPlayer(ranks(1, does(spinning)), stall.Host, stall.Fabric),
	} {
		for at := time.Duration(0); at < time.Hour; at += time.Second {
			if v := p.tick(at)[0]; v.Unknown == stall.Known || at > 10*time.Minute && v.Unknown != stall.NoReference {
				t.Fatalf("%s: after %v: %+v", name, at, v)
			}
		}
	}
}

// A hang is found at any interval, and sooner where less time is asked for.
func TestIntervals(t *testing.T) {
	for _, tc := range []struct{ interval, after, latest time.Duration }{
		{10 * time.Second, 0, 10 * time.Minute},
		{time.Minute, 0, 10 * time.Minute},
		{time.Second, time.Minute, 75 * time.Second},
	} {
		p := newPlayer(ranks(2, does(training).from(time.Hour, does(spinning))))
		p.judge, p.interval = stall.New(tc.after, tc.interval), tc.interval
		found := time.Duration(0)
		for at := time.Duration(0); found == 0 && at < 2*time.Hour; at += tc.interval {
			if alarms(p.tick(at)) > 0 {
				found = at - time.Hour
			}
		}
		if found < min(tc.after, stall.DefaultAfter) || found > tc.latest {
			t.Errorf("every %v, with %v: found after %v", tc.interval, tc.after, found)
		}
	}
}

// A restored judge continues: it keeps the working level, the begin of the quiet phase, and the
// lengths of earlier waits.
func TestRestore(t *testing.T) {
	jobs := healthyJobs()
	jobs["hang"] = healthyJob{ranks: hangs()["of an L4"].ranks}
	for _, name := range []string{
		"hang", "evaluation by a rank that is elsewhere", "a longer recompile, of which nothing but power is seen",
	} {
		one, other := newPlayer(jobs[name].ranks), newPlayer(jobs[name].ranks)
		different := 0
		for at := time.Duration(0); at < 13*time.Hour; at += time.Second {
			if at%(7*time.Minute) == 0 {
				state := other.judge.AppendState(nil, nil)
				other.judge = stall.New(0, time.Second)
				if err := other.judge.Restore(state); at > 0 && err != nil {
					t.Fatal(err)
				}
			}
			if a, b := one.tick(at)[0], other.tick(at)[0]; (a.Stalled == nil) != (b.Stalled == nil) {
				different++
			}
		}
		// A restart loses the present window, so that the phase may be one or two windows longer.
		if different > 90 {
			t.Errorf("%s: the judgement of one that is restored differs for %d s", name, different)
		}
	}
	if err := stall.New(0, 0).Restore([]byte("no")); err == nil {
		t.Error("what is no state is taken for one")
	}
}

// The time without a process does not count, since the claim's activity in it is unknown. Nothing
// is written while no window ends.
func TestRestoreAfterATime(t *testing.T) {
	p := newPlayer(hangs()["of an L4"].ranks) // it hangs after an hour
	const hang, away = time.Hour, 20 * time.Minute
	at := time.Duration(0)
	for ; at < hang+stall.DefaultAfter/2; at += time.Second {
		p.tick(at)
	}
	state := p.judge.AppendState(nil, nil)
	if more := p.judge.AppendChanges(nil, nil); len(more) > 0 {
		t.Errorf("%d bytes are written though no window has ended", len(more))
	}
	p.judge = stall.New(0, time.Second)
	if err := p.judge.Restore(state); err != nil {
		t.Fatal(err)
	}
	found, began := time.Duration(0), at+away
	for at = began; found == 0 && at < began+stall.DefaultAfter; at += time.Second {
		if p.tick(at)[0].Stalled != nil {
			found = at - began
		}
	}
	if left := stall.DefaultAfter / 2; found < left-time.Minute || found > left+2*p.judge.Window() {
		t.Errorf("found %v after the restart, want what was left of %v", found, left)
	}
}
