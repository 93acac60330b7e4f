package stalltest

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
)

// Course is a function of the minute; ok is false where there is no sample.
type Course func(minute int) (value float64, ok bool)

// Series is a series as promtool's unit tests write them: its labels without braces.
type Series struct {
	Metric, Labels string
	Value          Course
}

// Straggler is a member that the others of its workload wait for, by the reason of
// workload_device:dra_straggler:info.
type Straggler struct {
	Member   int
	Reason   string
	From, To int // minutes in which it is one
}

// Workload is a job or a service of several members, each with one device for itself, as rules in
// Prometheus see it: minute by minute for [WorkloadMinutes].
type Workload struct {
	Name, Why, Source string
	Kind              string // of the workload, such as JobSet
	Members           []Member
	Stragglers        []Straggler // the truth
}

// WorkloadMinutes is the length of a workload's series: three hours.
const WorkloadMinutes = 180

// Member is a member of a workload: what its device shows from the first to before the last minute.
type Member struct {
	Name        string
	Node        string
	Model       Model
	First, Last int // 0 as Last: to the end
	At          func(minute int) Second
}

// Second is what a member's device does in a typical second of a minute.
type Second struct {
	Utilization, Tensor, SM float64
	Clock                   float64 // share of the model's maximum
	Watts                   float64
	Throttled               float64 // share of time, for heat
	Traffic                 float64 // bytes per second over NVLink
}

// Series returns the series of a workload in a namespace: those that the exporters of its nodes
// serve of its members.
func (w Workload) Series(namespace string) []Series {
	var out []Series
	for i, m := range w.Members {
		out = append(out, w.series(i, m, namespace)...)
	}
	return out
}

func (w Workload) series(i int, m Member, namespace string) []Series {
	scraped := fmt.Sprintf(`node=%q, instance=%q, job="dra-exporter"`, m.Node, m.Node)
	device := fmt.Sprintf(`driver="gpu.nvidia.com", pool=%q, device="gpu-%d", %s`, m.Node, i, scraped)
	pod := fmt.Sprintf(`namespace=%q, pod=%q`, namespace, m.Name)
	claim := fmt.Sprintf(`namespace=%q, resourceclaim_name=%q`, namespace, m.Name)
	gauge := func(metric, labels string, value func(s Second) float64) Series {
		return Series{metric, labels, m.gauge(value)}
	}
	counter := func(metric, labels string, value func(s Second) float64) Series {
		return Series{metric, labels, m.counter(value)}
	}
	one := func(Second) float64 { return 1 }
	return []Series{
		gauge("dra_pod_info", fmt.Sprintf(`%s, uid="%s-uid", workload_kind=%q, workload_name=%q, %s`, pod, m.Name, w.Kind,
			w.Name, scraped), one),
		gauge("dra_pod_claim_info", fmt.Sprintf(`%s, resourceclaim_name=%q, %s, attribution="exclusive"`, pod, m.Name,
			device), one),
		gauge("dra_claim_device_info", claim+", "+device+`, share_id="", admin_access="false", attribution="exclusive", `+
			`state="prepared"`, one),
		gauge("dra_device_info", fmt.Sprintf(`%s, model=%q`, device, m.Model.Name), one),
		gauge("dra_device_clock_hertz", device+`, domain="sm"`, func(s Second) float64 { return s.Clock * m.Model.ClockMax }),
		gauge("dra_device_clock_max_hertz", device+`, domain="sm"`, func(Second) float64 { return m.Model.ClockMax }),
		gauge("dra_device_utilization_ratio", device, func(s Second) float64 { return s.Utilization }),
		gauge("dra_device_engine_utilization_ratio", device+`, engine="tensor"`, func(s Second) float64 { return s.Tensor }),
		gauge("dra_device_engine_utilization_ratio", device+`, engine="sm"`, func(s Second) float64 { return s.SM }),
		gauge("dra_device_power_watts", device, func(s Second) float64 { return s.Watts }),
		counter("dra_device_throttled_seconds_total", device+`, reason="thermal"`,
			func(s Second) float64 { return s.Throttled }),
		counter("dra_device_io_bytes_total", device+`, link="nvlink", direction="transmit"`,
			func(s Second) float64 { return s.Traffic }),
	}
}

func (m Member) present(minute int) bool {
	return minute >= m.First && (m.Last == 0 || minute < m.Last) && minute < WorkloadMinutes
}

func (m Member) gauge(value func(Second) float64) Course {
	return func(minute int) (float64, bool) {
		if !m.present(minute) {
			return 0, false
		}
		return value(m.At(minute)), true
	}
}

// counter returns a counter that starts at 0 in the first minute.
func (m Member) counter(rate func(Second) float64) Course {
	sums := make([]float64, WorkloadMinutes)
	for minute := 1; minute < WorkloadMinutes; minute++ {
		sums[minute] = sums[minute-1]
		if m.present(minute - 1) {
			sums[minute] += 60 * rate(m.At(minute-1))
		}
	}
	return func(minute int) (float64, bool) {
		if !m.present(minute) {
			return 0, false
		}
		return sums[minute], true
	}
}

// jitter is noise from -1 to 1, the same for the same name and minute.
func jitter(name string, minute int) float64 {
	h := fnv.New64a()
	_, _ = h.Write(append([]byte(name), byte(minute), byte(minute>>8)))
	return float64(h.Sum64()>>11)/(1<<52) - 1
}

// inStep is what each member of a job does whose members exchange gradients in each step.
func inStep() Second {
	return Second{Utilization: 0.985, Tensor: 0.46, SM: 0.9, Clock: 0.96, Watts: 640, Traffic: 6e9}
}

// members returns members on nodes of four devices each, which do what a function says, with noise
// of one percent.
func members(n int, at func(member, minute int) Second) []Member {
	var out []Member
	for i := range n {
		name := fmt.Sprintf("worker-%d", i)
		out = append(out, Member{
			Name: name, Node: fmt.Sprintf("n%d", i/4+1), Model: H100(),
			At: func(minute int) Second { return at(i, minute).noisy(name, minute) },
		})
	}
	return out
}

func (s Second) noisy(name string, minute int) Second {
	by := 1 + 0.01*jitter(name, minute)
	s.Utilization, s.Tensor, s.SM = math.Min(1, s.Utilization*(1+(by-1)/4)), s.Tensor*by, math.Min(1, s.SM*by)
	s.Watts *= by
	s.Clock = math.Min(1, s.Clock*(1+(by-1)/8))
	if s.Traffic > 0 {
		s.Traffic *= 1 + (by-1)/20
	}
	return s
}

// Workloads returns the workloads with and without stragglers.
func Workloads() []Workload {
	return slices.Concat(slowWorkloads(), evenWorkloads(), unequalWorkloads())
}

// becameAt is the minute in which a member becomes slow.
const becameAt = 60

// waiting is what the others do when one member takes longer: they spin for a part of each step.
func waiting(s Second, share float64) Second {
	s.Tensor *= 1 - share
	s.SM = s.SM*(1-share) + 0.12*share
	s.Watts -= (s.Watts - 125) * share
	s.Traffic *= 1 - share
	return s
}

// slowWorkloads each have a member that became slow.
func slowWorkloads() []Workload {
	// slow returns eight members in step, of which number 5 changes and the others wait for it.
	slow := func(name, why, source, reason string, share float64, change func(Second) Second) Workload {
		return Workload{
			Name: name, Why: why, Source: source, Kind: "JobSet", Stragglers: []Straggler{{
				5, reason, becameAt,
				WorkloadMinutes,
			}},
			Members: members(8, func(i, minute int) Second {
				switch {
				case minute < becameAt:
					return inStep()
				case i == 5:
					s := change(inStep())
					s.Traffic *= 1 - share
					return s
				default:
					return waiting(inStep(), share)
				}
			}),
		}
	}
	shed := slow("became-low-clock-then-recovers", "a power brake of half an hour", "reasoning", "low_clock", 0.2,
		func(s Second) Second { s.Clock, s.Watts = 0.76, 480; return s })
	usual := shed.Members[0].At
	for i := range shed.Members {
		at := shed.Members[i].At
		shed.Members[i].At = func(minute int) Second {
			if minute >= becameAt+30 {
				return usual(0)
			}
			return at(minute)
		}
	}
	shed.Stragglers[0].To = becameAt + 30
	return []Workload{
		slow("became-low-clock", "its clock falls to three quarters, all steps take longer",
			"arXiv 2605.17879 (fail-slow)", "low_clock", 0.22,
			func(s Second) Second { s.Clock, s.Watts = 0.74, 470; return s }),
		slow("became-hot", "a fan failed: heat throttles it for a third of the time", "reasoning", "throttled", 0.2,
			func(s Second) Second { s.Clock, s.Throttled, s.Watts = 0.78, 0.35, 500; return s }),
		slow("became-slow-at-full-clock", "its memory became slow: it computes for longer at the same clock",
			"Greyhound, ATC'25", "busy", 0.3,
			func(s Second) Second { s.Tensor = 0.46; return s }),
		slow("became-starved", "its storage became slow: it waits for batches, the others spin", "reasoning", "starved", 0.3,
			func(s Second) Second { s.Utilization, s.Tensor, s.SM, s.Watts = 0.7, 0.33, 0.64, 470; return s }),
		{
			Name: "low-clock-from-the-start", Why: "one card never reaches more than 60 % of its maximum at the same work",
			Source: "github.com/ROCm/legacy-rocm-build/issues/4414", Kind: "PyTorchJob",
			Stragglers: []Straggler{{2, "low_clock", 0, WorkloadMinutes}},
			Members: members(4, func(i, _ int) Second {
				if i == 2 {
					s := inStep()
					s.Clock, s.Watts = 0.58, 400
					return s
				}
				return waiting(inStep(), 0.35)
			}),
		},
		shed,
	}
}

// lateMember returns members of which the last joins later, and reads weights before it works.
func lateMember() []Member {
	late := members(6, func(int, int) Second { return inStep() })
	late[5].First = 75
	at := late[5].At
	late[5].At = func(minute int) Second {
		if minute < 80 {
			return Second{Clock: 0.17, Watts: 75}
		}
		return at(minute)
	}
	return late
}

// evenWorkloads have members that are all as fast, or of which nobody can tell who is slow.
func evenWorkloads() []Workload { //nolint:funlen // a table
	low := func(s Second, clock, watts float64) Second {
		s.Clock, s.Watts = clock, watts
		return s
	}
	mixed := func(clock float64) []Member {
		out := members(4, func(int, int) Second { return inStep() })
		out[3].Model = A100()
		out[3].At = func(minute int) Second {
			return Second{
				Utilization: 0.99, Tensor: 0.62, SM: 0.93, Clock: clock, Watts: 380,
				Traffic: 6e9,
			}.noisy("worker-3", minute)
		}
		return out
	}
	return []Workload{
		{
			Name: "equal", Why: "all members do the same", Source: "recording train_bf16", Kind: "JobSet",
			Members: members(8, func(int, int) Second { return inStep() }),
		},
		{
			Name: "h100-and-capped-a100", Why: "models have their own limits of power, and are not compared",
			Source: "reasoning", Kind: "PyTorchJob", Members: mixed(0.8),
		},
		{
			Name: "late-member", Why: "a member joins after 75 minutes, and reads weights for five", Source: "reasoning",
			Kind: "JobSet", Members: lateMember(),
		},
		{
			Name: "half-slow", Why: "the limit of power of one node is lowered: four of eight, so that no member differs " +
				"from most",
			Source: "reasoning", Kind: "JobSet", Members: members(8, func(i, minute int) Second {
				if i >= 4 && minute >= becameAt {
					return low(inStep(), 0.75, 450)
				}
				return inStep()
			}),
		},
		{
			Name: "short-dip", Why: "a member is slow for three minutes while its node is backed up", Source: "reasoning",
			Kind: "JobSet",
			Members: members(8, func(i, minute int) Second {
				switch {
				case minute < becameAt || minute >= becameAt+3:
					return inStep()
				case i == 5:
					return low(inStep(), 0.8, 500)
				default:
					return waiting(inStep(), 0.15)
				}
			}),
		},
		{
			Name: "takes-turns", Why: "sequences differ in length: in each minute another member is the slowest",
			Source: "reasoning", Kind: "JobSet",
			Members: members(8, func(i, minute int) Second {
				if minute%8 == i {
					return inStep()
				}
				return waiting(inStep(), 0.12)
			}),
		},
		{
			Name: "validation-on-rank-0", Why: "rank 0 validates on its device for ten minutes of each hour, the others spin",
			Source: "reasoning", Kind: "PyTorchJob",
			Members: members(8, func(i, minute int) Second {
				switch {
				case minute%60 < 50:
					return inStep()
				case i == 0:
					return Second{Utilization: 0.97, Tensor: 0.5, SM: 0.8, Clock: 0.98, Watts: 600}
				default:
					return Second{Utilization: 1, Tensor: 0, SM: 0.12, Clock: 1, Watts: 127}
				}
			}),
		},
	}
}

// unequalWorkloads have members that differ by design, or that have nothing to do with each other.
func unequalWorkloads() []Workload {
	// each returns members with levels of their own for all the time.
	each := func(levels ...Second) []Member {
		return members(len(levels), func(i, _ int) Second { return levels[i] })
	}
	replica := func(utilization float64) Second {
		return Second{
			Utilization: utilization, Tensor: utilization * 0.3, SM: utilization * 0.7, Clock: 1, Watts: 118 + 350*utilization,
		}
	}
	stage := func(tensor, traffic float64) Second {
		return Second{Utilization: 0.99, Tensor: tensor, SM: 0.88, Clock: 0.96, Watts: 250 + 800*tensor, Traffic: traffic}
	}
	changing := members(5, func(i, minute int) Second {
		return replica(0.5 + 0.45*jitter("load balancer", minute/7*5+i))
	})
	return []Workload{
		{
			Name: "replicas-that-change", Why: "sessions stick to replicas: load moves each few minutes",
			Source: "reasoning", Kind: "Deployment", Members: changing,
		},
		{
			Name: "array-with-a-slow-card", Why: "nobody waits for the simulation on it", Source: "reasoning", Kind: "Job",
			Members: members(5, func(i, _ int) Second {
				s := replica(1)
				if i == 3 {
					s.Clock = 0.6
				}
				return s
			}),
		},
		{
			Name: "pipeline-with-bubbles", Why: "receives block outside of kernels: stages differ in utilization",
			Source: "reasoning", Kind: "JobSet",
			Members: members(4, func(i, _ int) Second {
				s := stage(0.4, 1.2e9)
				s.Utilization = []float64{0.94, 0.9, 0.86, 0.6}[i]
				return s
			}),
		},
		{
			Name: "hot-experts", Why: "two of eight experts get most tokens from the start", Source: "reasoning",
			Kind: "PyTorchJob",
			Members: each(stage(0.4, 5e9), stage(0.4, 5e9), stage(0.63, 5e9), stage(0.4, 5e9), stage(0.4, 5e9), stage(0.6,
				5e9), stage(0.4, 5e9),
				stage(0.4, 5e9)),
		},
	}
}
