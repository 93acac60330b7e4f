package stall_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/exporter/stall/judgetest"
	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const (
	worksFor = 20 * time.Minute // before it hangs
	gib      = 1 << 30
)

func trains() stalltest.Load {
	return stalltest.Load{
		Context: true, Memory: 70 * gib, Busy: 0.99, SM: 0.88, Tensor: 0.46, FP32: 0.06, Int: 0.1, DRAM: 0.38,
		ToDevice: 40e6, CPU: 1, Faults: 2500, Anon: gib,
	}
}

// spins waits in a collective; its process sleeps.
func spins() stalltest.Load {
	return stalltest.Load{
		Context: true, Memory: 70 * gib, Busy: 1, SM: 0.1212, Int: 0.0031, CPU: 0.01, Anon: gib, Noise: 0.003,
	}
}

// hangs is a pod that trains and then does something for ever.
func hangs(then stalltest.Load) stalltest.Kind {
	return stalltest.Kind{
		Name: "hangs", Model: stalltest.H100(), Sees: stalltest.FullGPM, Pod: stalltest.Pod{WorkloadKind: "Job"},
		Phases: []stalltest.Phase{
			{Name: "start", For: 2 * time.Minute, Load: stalltest.Load{Context: true, CPU: 1, Anon: gib}},
			{Name: "train", For: worksFor - 2*time.Minute, Load: trains()},
			{Name: "hang", Truth: stalltest.Hangs, Load: then},
		},
	}
}

func play(trace stalltest.Trace) *judgetest.Player {
	p, err := judgetest.New(trace)
	if err != nil {
		panic(err)
	}
	return p
}

// last returns the last verdict after a time, with an edit of the readings of each second.
func last(kind stalltest.Kind, length time.Duration, edit func(*judgetest.Player, *stalltest.Sample)) stall.Verdict {
	trace := kind.Trace(1, length)
	p := play(trace)
	var v stall.Verdict
	for s := range trace.Samples {
		if edit != nil {
			edit(p, s)
		}
		v = p.Play(s)[0]
	}
	return v
}

// A verdict is known only if everything is that it stands on; each case takes one thing away, or
// adds one.
func TestEvidence(t *testing.T) {
	const after = worksFor + stall.DefaultAfter + time.Minute
	without := func(fields ...stalltest.Field) func(*judgetest.Player, *stalltest.Sample) {
		return func(_ *judgetest.Player, s *stalltest.Sample) {
			for _, f := range fields {
				s.Values[f] = math.NaN()
			}
		}
	}
	with := func(change func(*stalltest.Load)) stalltest.Kind {
		l := spins()
		change(&l)
		return hangs(l)
	}
	// exchanges is a hang of a claim that exchanged data over a network, while threads run.
	exchanges := func(threads float64) stalltest.Kind {
		kind := with(func(l *stalltest.Load) { l.CPU = threads })
		kind.Phases[1].Load.NetworkIn, kind.Phases[1].Load.NetworkOut = 5e9, 5e9
		return kind
	}
	whole := hangs(spins())
	several := whole
	several.Devices = 8
	idle := several
	idle.Phases = slices.Clone(several.Phases)
	idle.Phases[2].Others = stalltest.OthersIdle
	work := several
	work.Phases = slices.Clone(several.Phases)
	work.Phases[2].Others = stalltest.OthersWork
	for name, tc := range map[string]struct {
		kind stalltest.Kind
		edit func(*judgetest.Player, *stalltest.Sample)
		want string
		more func(v *stall.Verdict) bool
	}{
		"everything is measured":     {kind: whole, want: "stalled"},
		"all of eight ranks":         {kind: several, want: "stalled"},
		"another rank works":         {kind: work, want: "unknown (another_rank_works)"},
		"the others are idle":        {kind: idle, want: "unknown (another_rank_idles)"},
		"without utilization":        {whole, without(stalltest.Busy), "unknown (no_utilization)", nil},
		"without power":              {whole, without(stalltest.Power), "unknown (no_power)", nil},
		"without SMs, with integers": {whole, without(stalltest.SM), "stalled", nil},
		"without integers, with SMs": {whole, without(stalltest.Int), "stalled", nil},
		"without cgroups": {
			whole, func(p *judgetest.Player, _ *stalltest.Sample) { p.NoHost = true }, "unknown (no_host)", nil,
		},
		"without page faults": {whole, without(stalltest.PageFaults), "unknown (no_host)", nil},
		"without storage":     {whole, without(stalltest.HostRead, stalltest.HostWritten), "stalled", nil},
		"of a Job with several members": {
			whole, func(p *judgetest.Player, _ *stalltest.Sample) { p.Readings[0].Elsewhere = true },
			"unknown (ranks_elsewhere)", nil,
		},
		"a thread runs": {
			kind: with(func(l *stalltest.Load) { l.CPU = 1 }), want: "unknown (host_spins)",
		},
		"two threads run": {kind: with(func(l *stalltest.Load) { l.CPU = 2 }), want: "unknown (host_works)"},
		"two threads run, of which one may poll the network": {
			kind: exchanges(2), want: "unknown (host_spins)",
		},
		"three threads run, of which one may poll the network": {
			kind: exchanges(3), want: "unknown (host_works)",
		},
		"idle while a thread runs": {
			kind: with(func(l *stalltest.Load) { l.Busy, l.SM, l.Int, l.CPU = 0, 0, 0, 1 }), want: "unknown (idle)",
		},
		"idle while the host works": {
			kind: with(func(l *stalltest.Load) { l.Busy, l.SM, l.Int, l.CPU = 0, 0, 0, 2 }), want: "unknown (host_works)",
		},
		"one of the blocks that spin works": {
			kind: with(func(l *stalltest.Load) { l.SM, l.Int, l.FP32 = 0.48, 0.014, 0.0022 }), want: "unknown (unclear)",
		},
		"a checkpoint": {kind: with(func(l *stalltest.Load) { l.Written = 1e7 }), want: "unknown (host_works)"},
		"page faults":  {kind: with(func(l *stalltest.Load) { l.Faults = 1e3 }), want: "unknown (host_works)"},
		"a download":   {kind: with(func(l *stalltest.Load) { l.PodIn = 5e6 }), want: "unknown (host_works)"},
		"a poller over PCIe": {
			kind: with(func(l *stalltest.Load) { l.ToDevice, l.SM, l.Int = 64e6, 0.015, 0 }), want: "unknown (unclear)",
		},
		"a slow poller over PCIe": {
			kind: with(func(l *stalltest.Load) { l.ToDevice = 1.2e6 }), want: "unknown (unclear)",
		},
		"retransmits": {
			kind: with(func(l *stalltest.Load) { l.NetworkOut = 1.5e6 }), want: "unknown (unclear)",
		},
		"a flood of retransmits": {
			kind: with(func(l *stalltest.Load) { l.NetworkOut = 5e8 }), want: "unknown (unclear)",
		},
		"a ring over the network": {
			kind: with(func(l *stalltest.Load) { l.NetworkIn, l.NetworkOut = 5e8, 5e8 }), want: "not stalled",
		},
		"a livelock": {kind: with(func(l *stalltest.Load) { l.Busy = 0.6 }), want: "unknown (pauses)"},
		"idle":       {kind: with(func(l *stalltest.Load) { l.Busy, l.SM, l.Int = 0, 0, 0 }), want: "unknown (idle)"},
		"one block": {
			kind: with(func(l *stalltest.Load) { l.SM, l.Int, l.FP32 = 0.0076, 0.0009, 0.0022 }), want: "not stalled",
		},
		"one block, loops": {kind: with(func(l *stalltest.Load) { l.SM, l.Int = 0.0076, 0.0018 }), want: "unknown (unclear)"},
		"one block, loads": {kind: with(func(l *stalltest.Load) { l.SM, l.Int = 0.0076, 0.0001 }), want: "unknown (unclear)"},
		"dependent loads": {
			kind: with(func(l *stalltest.Load) { l.SM, l.Int, l.L2 = 1, 0.0128, 1 }), want: "not stalled",
		},
		"copies": {
			kind: with(func(l *stalltest.Load) { l.ToDevice, l.Busy, l.SM = 6e10, 0, 0 }), want: "not stalled",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := last(tc.kind, after, tc.edit)
			if got := v.State(); got != tc.want {
				t.Errorf("the verdict is %s, want %s: %+v", got, tc.want, v)
			}
		})
	}
}

// Without one of the engines that could do the work, nothing is known, and the verdict names it.
func TestMissingEngines(t *testing.T) {
	for name, tc := range map[string]struct {
		sees stalltest.Telemetry
		want []stall.Signal
	}{
		"DCGM's default fields": {
			stalltest.DCGMDefault, []stall.Signal{stall.FP64, stall.FP32, stall.FP16, stall.Int, stall.SM},
		},
		"NVML without GPM": {
			stalltest.NVMLOnly, []stall.Signal{stall.Tensor, stall.FP64, stall.FP32, stall.FP16, stall.Int, stall.SM},
		},
	} {
		kind := hangs(stalltest.Load{Context: true, Busy: 1, SM: 1, FP32: 0.3, Int: 0.12}) // a Monte Carlo: it works
		kind.Sees = tc.sees
		v := last(kind, 2*time.Hour, nil)
		expect.That(t, v.Unknown == stall.NoEngines, "%s: the verdict is %s", name, v.State())
		expect.Equal(t, fmt.Sprintf("%s: missing", name), tc.want, v.Missing)
	}
}

// A claim that was never seen idle is judged by what its SMs do. Only where power must tell work
// from waiting, it is unknown.
func TestNeverSeenIdle(t *testing.T) {
	for name, tc := range map[string]struct {
		then stalltest.Load
		want string
	}{
		"a spin":    {spins(), "stalled"},
		"integers":  {stalltest.Load{Context: true, Busy: 1, SM: 1, Int: 1}, "not stalled"},
		"one block": {stalltest.Load{Context: true, Busy: 1, SM: 0.0076, FP32: 0.0022}, "not stalled"},
		"dependent loads": {
			stalltest.Load{Context: true, Busy: 1, SM: 1, Int: 0.0128, L2: 1, Anon: gib}, "unknown (no_idle_level)",
		},
	} {
		kind := hangs(tc.then)
		kind.Phases = kind.Phases[1:]
		if v := last(kind, worksFor+stall.DefaultAfter+time.Minute, nil); v.State() != tc.want {
			t.Errorf("%s: the verdict is %s, want %s: %+v", name, v.State(), tc.want, v)
		}
	}
}

// A claim that has never worked is stalled after 40 minutes if the device's idle power with a
// context open is known, and that of each active SM is too low for work.
func TestNeverWorked(t *testing.T) {
	for name, tc := range map[string]struct {
		idle time.Duration // before, with a context open
		then stalltest.Load
		want string
	}{
		"a spin":                          {20 * time.Second, spins(), "stalled"},
		"a spin, never idle":              {0, spins(), "unknown (no_reference)"},
		"a spin, while a thread runs":     {20 * time.Second, threadRuns(), "unknown (host_spins)"},
		"dependent loads on the same SMs": {20 * time.Second, someLoads(), "unknown (no_reference)"},
		"a spin of some blocks":           {20 * time.Second, spinsOn(0.04), "stalled"},
		"a spin of few blocks":            {20 * time.Second, spinsOn(0.02), "unknown (no_reference)"}, // or their work
	} {
		kind := hangs(tc.then)
		kind.Phases = kind.Phases[2:]
		if tc.idle > 0 {
			kind.Phases = slices.Insert(kind.Phases, 0, stalltest.Phase{
				Name: "start", For: tc.idle, Load: stalltest.Load{Context: true, CPU: 1, Anon: gib},
			})
		}
		for _, at := range []time.Duration{39 * time.Minute, 42 * time.Minute} {
			want := tc.want
			if want == "stalled" && at < 40*time.Minute {
				want = "unknown (no_reference)"
			}
			if v := last(kind, at, nil); v.State() != want {
				t.Errorf("%s: after %v the verdict is %s, want %s: %+v", name, at, v.State(), want, v)
			}
		}
	}
}

func threadRuns() stalltest.Load {
	l := spins()
	l.CPU = 1
	return l
}

// spinsOn is a wait of blocks on a share of the SMs.
func spinsOn(share float64) stalltest.Load {
	l := spins()
	l.Int, l.SM = l.Int*share/l.SM, share
	return l
}

// someLoads are dependent loads in L2 by as many SMs as a wait has.
func someLoads() stalltest.Load {
	l := spins()
	l.Int, l.L2 = 0.121*0.0128, 0.121
	return l
}

// The time for which a claim is quiet is known to the second, and 0 while it works. It begins again
// when the host has worked.
func TestQuiet(t *testing.T) {
	works := spins()
	works.CPU = 4
	kind := hangs(spins())
	kind.Phases = []stalltest.Phase{
		kind.Phases[0], kind.Phases[1],
		{Name: "quiet", For: 5 * time.Minute, Load: spins()},
		{Name: "host", For: 35 * time.Minute, Load: works},
		{Name: "quiet again", For: 7 * time.Minute, Load: spins()},
	}
	trace := kind.Trace(1, worksFor+47*time.Minute)
	p := play(trace)
	for s := range trace.Samples {
		v := p.Play(s)[0]
		at := s.At.Sub(stalltest.Start())
		switch {
		case v.Stalled != nil:
			t.Fatalf("at %v it is stalled: %+v", at, v)
		case at > time.Minute+2*time.Minute && at < worksFor && v.Quiet != 0:
			t.Fatalf("at %v it works, and is quiet for %v", at, v.Quiet)
		case at == worksFor+4*time.Minute && (v.Quiet < 3*time.Minute || v.Quiet > 5*time.Minute):
			t.Errorf("after four minutes it is quiet for %v", v.Quiet)
		case at == worksFor+30*time.Minute && v.Quiet != stall.NoQuiet:
			t.Errorf("while the host works it is quiet for %v", v.Quiet)
		case at == worksFor+46*time.Minute && (v.Quiet < 4*time.Minute || v.Quiet > 7*time.Minute):
			t.Errorf("six minutes after the host worked it is quiet for %v", v.Quiet)
		}
	}
}

// A verdict that changes says since when, and what it was before.
func TestChange(t *testing.T) {
	v := last(hangs(spins()), worksFor+stall.DefaultAfter+3*time.Minute, nil)
	expect.That(t, v.Before == "not stalled", "before it was %q", v.Before)
	since := v.Since.Sub(stalltest.Start())
	if want := worksFor + stall.DefaultAfter; since < want-time.Minute || since > want+time.Minute {
		t.Errorf("it is stalled since %v, want %v", since, want)
	}
	const want = "power,tensor,fp64,fp32,fp16,int,sm,memory_traffic,media,pcie,fabric," +
		"cpu,storage,page_faults,host_memory,pod_network"
	expect.That(t, v.Why() == want, "it stands on %q, want %q", v.Why(), want)
}

// A verdict names the devices of its workload on the node, and what each does.
func TestPeers(t *testing.T) {
	kind := hangs(spins())
	kind.Devices = 3
	kind.Phases[2].Others = stalltest.OthersIdle
	v := last(kind, worksFor+stall.DefaultAfter+3*time.Minute, nil)
	var does []string
	for _, p := range v.Peers {
		does = append(does, p.String())
	}
	if v.Ranks != 3 || v.Working != 0 || v.Still != 1 || len(does) != 3 ||
		v.Peers[0].Does != "quiet" || v.Peers[1].Does != "idle" {
		t.Errorf("%q: %+v", does, v)
	}
	if v := last(hangs(spins()), worksFor, nil); len(v.Peers) > 0 {
		t.Errorf("a device without others has %v", v.Peers)
	}
}

// A hang is found at any interval, and sooner where less time is asked for.
func TestIntervals(t *testing.T) {
	for _, tc := range []struct{ interval, after, latest time.Duration }{
		{10 * time.Second, 0, 10 * time.Minute},
		{time.Minute, 0, 12 * time.Minute},
		{time.Second, time.Minute, 75 * time.Second},
	} {
		trace := hangs(spins()).Trace(1, worksFor+30*time.Minute)
		p := play(trace)
		p.Judge = stall.New(tc.after, tc.interval)
		found := time.Duration(0)
		for s := range trace.Samples {
			at := s.At.Sub(stalltest.Start())
			if at%tc.interval == 0 && found == 0 && p.Play(s)[0].Stalled != nil {
				found = at - worksFor
			}
		}
		expect.That(t, found >= min(tc.after, stall.DefaultAfter) && found <= tc.latest,
			"every %v, with %v: found after %v", tc.interval, tc.after, found)
	}
}

// A restored judge continues: it keeps the working level, the begin of the quiet phase, the verdict
// and the lengths of earlier waits. The time without a process does not count, since the claim's
// activity in it is unknown. Nothing is written while no window ends.
func TestRestore(t *testing.T) {
	const away = 20 * time.Minute
	trace := hangs(spins()).Trace(1, 2*time.Hour)
	p := play(trace)
	began, found := worksFor+stall.DefaultAfter/2, time.Duration(0)
	for s := range trace.Samples {
		at := s.At.Sub(stalltest.Start())
		switch {
		case at > began && at < began+away:
			continue
		case at == began+away:
			state := p.Judge.AppendState(nil, nil)
			more := p.Judge.AppendChanges(nil, nil)
			expect.That(t, len(more) == 0, "%d bytes are written though no window has ended", len(more))
			p.Judge = stall.New(0, time.Second)
			must.Do(t, p.Judge.Restore(state))
		}
		v := p.Play(s)[0]
		if at == began+away && v.State() != "not stalled" {
			t.Errorf("at first the verdict is %s", v.State())
		}
		if v.Stalled != nil && found == 0 {
			found = at - began - away
		}
	}
	if left := stall.DefaultAfter / 2; found < left-time.Minute || found > left+3*p.Judge.Window() {
		t.Errorf("found %v after the restart, want what was left of %v", found, left)
	}
	expect.That(t, stall.New(0, 0).Restore([]byte("no")) != nil, "what is no state is taken for one")
}

func TestMain(m *testing.M) { exportertest.Main(m) }
