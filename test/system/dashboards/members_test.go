package dashboards

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// member is a device that a pod of the workload JobSet a/llm has for itself. Nil: not measured.
type member struct {
	node, device                    string
	clock, tensor, utilization      course
	power, throttled, traffic       course
	attribution, kind, workloadName string
}

// rank is a typical member: 60 seconds of work in each minute at 1.8 GHz.
func rank(node, device string, change func(*member)) member {
	m := member{
		node: node, device: device, clock: always(1.8e9), tensor: always(0.4), utilization: always(0.98),
		power: always(600), throttled: rising(0), traffic: rising(6e9), attribution: "exclusive", kind: "JobSet",
		workloadName: "llm",
	}
	if change != nil {
		change(&m)
	}
	return m
}

func (m *member) series() []series {
	scraped := fmt.Sprintf(`node=%q, instance=%q, job="dra-exporter"`, m.node, m.node)
	device := fmt.Sprintf(`driver="gpu.x", pool=%q, device=%q, %s`, m.node, m.device, scraped)
	pod := fmt.Sprintf(`namespace="a", pod="%s-%s"`, m.workloadName, m.device)
	claim := fmt.Sprintf(`resourceclaim_name="%s-%s"`, m.workloadName, m.device)
	all := []series{
		{"dra_pod_info", fmt.Sprintf(`%s, uid="u", workload_kind=%q, workload_name=%q, %s`, pod, m.kind, m.workloadName,
			scraped), always(1)},
		{"dra_pod_claim_info", pod + ", " + claim + ", " + device + `, attribution="exclusive"`, always(1)},
		{"dra_claim_device_info", `namespace="a", ` + claim + ", " + device + fmt.Sprintf(
			`, share_id="", admin_access="false", attribution=%q, state="prepared"`, m.attribution), always(1)},
		{"dra_device_clock_hertz", device + `, domain="sm"`, m.clock},
		{"dra_device_clock_hertz", device + `, domain="video"`, always(1e9)},
		{"dra_device_clock_max_hertz", device + `, domain="sm"`, always(2e9)},
		{"dra_device_engine_utilization_ratio", device + `, engine="tensor"`, m.tensor},
		{"dra_device_utilization_ratio", device, m.utilization},
		{"dra_device_power_watts", device, m.power},
		{"dra_device_throttled_seconds_total", device + `, reason="thermal"`, m.throttled},
		{"dra_device_throttled_seconds_total", device + `, reason="idle"`, rising(60)},
		{"dra_device_io_bytes_total", device + `, link="nvlink", direction="transmit"`, m.traffic},
		{"dra_device_io_bytes_total", device + `, link="pcie", direction="transmit"`, rising(1e12)},
	}
	return slices.DeleteFunc(all, func(s series) bool { return s.value == nil })
}

// ranks are four members on two nodes, of which the last one differs.
func ranks(change, all func(*member)) []series {
	var out []series
	for i, node := range []string{"n1", "n1", "n2", "n2"} {
		of := all
		if i == 3 && change != nil {
			of = func(m *member) {
				if all != nil {
					all(m)
				}
				change(m)
			}
		}
		m := rank(node, fmt.Sprintf("gpu-%d", i), of)
		out = append(out, m.series()...)
	}
	return out
}

// then is a gauge that has another value from minute 20 to minute 60.
func then(usual, other float64) course {
	return func(m int) (float64, bool) {
		if m >= 20 && m < 60 {
			return other, true
		}
		return usual, true
	}
}

// counted is the counter of a rate in units a minute.
func counted(rate course) course {
	return counting(func(m int) float64 {
		v, _ := rate(m)
		return v
	})
}

// stragglerStories make the alert on stragglers fire for each reason. It must not fire if nothing
// shows that the other members wait for the member that differs.
func stragglerStories() []story {
	// fires is about a member that is slow from minute 20 to 60, and is named from some minute on.
	fires := func(name, reason string, from int, change, all func(*member)) story {
		alert := "DRAWorkloadStraggler namespace=a pod=llm-gpu-3 device=gpu-3 reason=" + reason
		return story{
			name: name, series: ranks(change, all),
			checks: []check{{19, nil}, {from, []string{alert}}, {59, []string{alert}}, {90, nil}},
		}
	}
	silent := func(name string, change, all func(*member)) story {
		return story{name: name, series: ranks(change, all), checks: []check{{19, nil}, {40, nil}, {59, nil}, {90, nil}}}
	}
	slow := func(m *member) { m.clock = then(1.8e9, 1.5e9) }
	hot := func(m *member) { m.clock, m.throttled = then(1.8e9, 1.5e9), counted(then(0, 30)) }
	busier := func(m *member) { m.tensor = then(0.4, 0.6) }
	starving := func(m *member) { m.utilization, m.power = then(0.98, 0.7), then(600, 450) }
	unlinked := func(m *member) { m.traffic = nil }
	two := func(differs func(*member)) []series {
		first, second := rank("n1", "gpu-0", nil), rank("n2", "gpu-3", differs)
		return slices.Concat(first.series(), second.series())
	}
	stories := []story{
		fires("a rank that heat slows down", "throttled", 40, hot, nil),
		fires("a rank that heat slows down, without a measurement of traffic", "throttled", 40, hot, unlinked),
		fires("a rank with a low clock", "low_clock", 40, slow, nil),
		fires("a rank that computes for longer", "busy", 50, busier, nil),
		fires("a rank that waits for its input while the others spin", "starved", 50, starving, nil),
		silent("all ranks are hot", nil, hot),
		silent("a rank that idles at a low clock", func(m *member) {
			slow(m)
			m.utilization, m.traffic = then(0.98, 0.1), counted(then(6e9, 1e8))
		}, nil),
		silent("a rank that is throttled and does little", func(m *member) {
			hot(m)
			m.utilization, m.traffic = then(0.98, 0.1), counted(then(6e9, 1e8))
		}, nil),
		silent("a rank that is throttled, and as fast as the others", func(m *member) {
			m.throttled = counted(then(0, 30))
		}, nil),
		silent("a replica with more to do, without a measurement of traffic", busier, unlinked),
		silent("a replica with more to do and more traffic", func(m *member) {
			busier(m)
			m.traffic = counted(then(6e9, 9e9))
		}, nil),
		silent("replicas without traffic", busier, func(m *member) { m.traffic = rising(0) }),
		silent("a device that claims share", func(m *member) {
			hot(m)
			m.attribution = "capacity"
		}, nil),
		silent("a rank of another workload", func(m *member) {
			hot(m)
			m.workloadName = "other"
		}, nil),
		{name: "two ranks, of which one is slow", series: two(hot), checks: []check{{40, nil}, {59, nil}}},
	}
	for _, w := range stalltest.Workloads() {
		stories = append(stories, workloadStory(&w))
	}
	return append(stories, quietStories()...)
}

// workloadStory is that of a generated workload: the alert fires for its stragglers and nobody
// else.
func workloadStory(w *stalltest.Workload) story {
	s := story{name: w.Name}
	for _, of := range w.Series("a") {
		s.series = append(s.series, series{of.Metric, of.Labels, course(of.Value)})
	}
	// Signals are means over 10 minutes, and the alert fires after 5 and for 5 more: it may start and
	// end 15 minutes later than the truth, and busy and starved last for 20 before. No check is in
	// these minutes.
	for _, at := range []int{50, 85, 100, 110, 170} {
		var fires []string
		settled := true
		for _, slow := range w.Stragglers {
			late := 15
			if slow.Reason == "busy" || slow.Reason == "starved" {
				late = 35
			}
			switch {
			case at >= slow.From+late && at < slow.To:
				fires = append(fires, fmt.Sprintf(
					"DRAWorkloadStraggler namespace=a pod=worker-%d device=gpu-%[1]d reason=%s", slow.Member, slow.Reason,
				))
			case at >= slow.From && at < slow.To+late:
				settled = false
			}
		}
		if settled {
			s.checks = append(s.checks, check{at, fires})
		}
	}
	return s
}

// quietStories are of members on several nodes, of which all but the last are quiet from minute 20
// to 100.
func quietStories() []story {
	alert := "DRAWorkloadStalled namespace=a"
	of := func(name, kind string, want []string, does ...string) story {
		var all []series
		for i, other := range does {
			node := fmt.Sprintf("n%d", i+1)
			m := rank(node, fmt.Sprintf("gpu-%d", i), func(m *member) { m.kind = kind })
			all = append(all, m.series()...)
			claim := fmt.Sprintf(`namespace="a", resourceclaim_name="llm-%s", driver="gpu.x", pool=%q, device=%[1]q, `+
				`node=%[2]q, instance=%[2]q, job="dra-exporter"`, m.device, m.node)
			quiet := series{"dra_claim_quiet_seconds", claim, rising(60).from(20).without(100, minutes)}
			switch other {
			case "quiet":
				all = append(all, quiet)
			case "not scraped":
				all = append(all[:len(all)-len(m.series())], gone(m.series(), m.node, 50)...)
			case "works":
				all = append(all, series{"dra_claim_stalled", claim + `, reason=""`, always(0)})
			default:
				all = append(all, series{"dra_claim_stalled_unknown", claim + fmt.Sprintf(", reason=%q", other), always(1)})
			}
		}
		var before, after []string
		if slices.Contains(does, "not scraped") {
			down := []string{"DRAExporterDown", "DRAExportersDown"} // it is the only target of the story
			before, want, after = down, down, down
		}
		return story{
			name: name, series: all, checks: []check{{15, nil}, {58, before}, {70, want}, {99, want}, {115, after}},
		}
	}
	return []story{
		of("all members are quiet", "JobSet", []string{alert}, "quiet", "quiet"),
		of("the other member is idle", "JobSet", []string{alert}, "quiet", "idle"),
		of("the other member works", "JobSet", nil, "quiet", "works"),
		of("the other member works on its host", "JobSet", nil, "quiet", "host_works"),
		of("the other member is not measured", "JobSet", nil, "quiet", "no_engines"),
		of("the exporter of the other member is down", "JobSet", nil, "quiet", "quiet", "not scraped"),
		of("a server without requests", "Deployment", nil, "quiet", "quiet"),
	}
}

// gone are series of a node whose exporter is down from a minute on.
func gone(all []series, node string, from int) []series {
	up := func(minute int) (float64, bool) {
		if minute < from {
			return 1, true
		}
		return 0, true
	}
	out := []series{{"up", fmt.Sprintf(`node=%[1]q, instance=%[1]q, job="dra-exporter"`, node), up}}
	for _, s := range all {
		out = append(out, series{s.name, s.labels, s.value.without(from, minutes)})
	}
	return out
}

// TestMembers compares median, spread and deviations of five members on two nodes with arithmetic
// by hand.
func TestMembers(t *testing.T) {
	t.Parallel()
	s := story{name: "members", alone: true}
	for i, clock := range []float64{1.80e9, 1.83e9, 1.71e9, 1.80e9, 1.50e9} {
		m := rank([]string{"n1", "n2"}[i%2], fmt.Sprintf("gpu-%d", i), func(m *member) {
			m.clock = always(clock)
			if i == 4 {
				m.power = always(400)
			}
		})
		s.series = append(s.series, m.series()...)
	}
	for i := range 2 {
		m := rank("n1", fmt.Sprintf("gpu-1%d", i), func(m *member) { m.workloadName = "pair" })
		s.series = append(s.series, m.series()...)
	}
	var file strings.Builder
	write(&file, s)
	for expr, want := range map[string]float64{
		`workload:dra_signal:median{signal="clock"}`: 0.9, // of 2 GHz
		// The distances are 0, 0, 0.03, 0.09 and 0.30 GHz.
		`round(1000 * workload:dra_signal:spread{signal="clock"})`: 22, // 1.4826 × 0.03 / 2
		`workload:dra_signal:median{signal="power"}`:               600,
		`workload:dra_signal:spread{signal="power"}`:               0.02 * 600, // four of five do not differ
		`workload:dra_signal:median{signal="traffic"}`:             6e9 / 60,
		// The power of gpu-4 deviates more than its clock, whose deviation is 0.30/0.044478 =
		// 6.745.
		`workload_device:dra_signal_deviations:max{device="gpu-4"}`: 200.0 / 12,
		`workload_device:dra_signal_deviations:max{device="gpu-2"}`: 0.09 / (1.4826 * 0.03),
	} {
		fmt.Fprintf(&file, "  - {eval_time: 30m, expr: 'round(sum(%s), 0.001)', exp_samples: "+
			"[{labels: '{}', value: %.3f}]}\n", expr, want)
	}
	file.WriteString("  - {eval_time: 30m, expr: 'workload:dra_signal:median{workload_name=\"pair\"}', exp_samples: []}\n")
	fmt.Fprintf(&file, "  - {eval_time: 30m, expr: 'sum by (node, device, reason) (workload_device:dra_straggler:info)', "+
		"exp_samples: [{labels: '{node=\"n1\", device=\"gpu-4\", reason=\"low_clock\"}', value: 1}]}\n")
	testRules(t, allGroups(t), file.String())
}

// TestStragglers compares the stragglers of the rules with the truth of generated workloads, each
// fifth minute: slow members that others wait for are named with their reason, and nobody else is,
// whether members differ by design, have nothing to do with each other, wait for one that saves a
// checkpoint, or are all as slow.
func TestStragglers(t *testing.T) {
	t.Parallel()
	var stories []story
	var checks strings.Builder
	for _, w := range stalltest.Workloads() {
		s := story{name: w.Name, checks: []check{{minute: stalltest.WorkloadMinutes - 1}}}
		for _, of := range w.Series("a") {
			s.series = append(s.series, series{of.Metric, of.Labels, course(of.Value)})
		}
		stories = append(stories, s.inCluster())
		for minute := 30; minute < stalltest.WorkloadMinutes; minute += 5 {
			if want, certain := stragglersAt(&w, minute); certain {
				fmt.Fprintf(&checks, "  - {eval_time: %dm, expr: 'sum by (cluster, device, reason) (%s{cluster=\"%s\"})', "+
					"exp_samples: [%s]}\n", minute, rules.StragglerRecord, w.Name, want)
			}
		}
	}
	var file strings.Builder
	write(&file, stories...)
	file.WriteString(checks.String())
	testRules(t, stragglerGroups(t), file.String())
	t.Logf("%d workloads, %d checks", len(stories), strings.Count(checks.String(), "\n"))
}

// stragglerGroups are the rules that compare members, with the records that they read: promtool
// evaluates all others in minutes.
func stragglerGroups(t *testing.T) []rules.Group {
	t.Helper()
	read := []string{"pod:dra_workload:info", "device:dra_model:info"}
	var out []rules.Group
	for _, g := range allGroups(t) {
		if !strings.Contains(g.Name, "members") {
			g.Rules = slices.DeleteFunc(slices.Clone(g.Rules), func(r rules.Rule) bool {
				return !slices.Contains(read, r.Record)
			})
		}
		if len(g.Rules) > 0 {
			out = append(out, g)
		}
	}
	must.That(t, len(out) >= 3, "only %d groups compare members", len(out))
	return out
}

// stragglersAt returns the samples of the stragglers at a minute. It is not certain while the
// rules' windows have both times before and times after a change.
func stragglersAt(w *stalltest.Workload, minute int) (samples string, certain bool) {
	var all []string
	for _, s := range w.Stragglers {
		window := 15
		if s.Reason == "busy" || s.Reason == "starved" {
			window = 30
		}
		switch {
		case s.From == 0 && minute < s.To, minute >= s.From+window && minute < s.To:
			all = append(all, fmt.Sprintf(`{labels: '{cluster=%q, device="gpu-%d", reason=%q}', value: 1}`, w.Name, s.Member,
				s.Reason))
		case minute >= s.From && minute < s.To+window:
			return "", false
		}
	}
	return strings.Join(all, ", "), true
}
