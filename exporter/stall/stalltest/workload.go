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
