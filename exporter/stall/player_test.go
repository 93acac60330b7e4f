package stall_test

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// player passes a trace to a judge: that of the first device, and for the other devices of the pod
// what the trace says of them.
type player struct {
	judge    *stall.Judge
	trace    stalltest.Trace
	readings []stall.Reading
	hosted   time.Time // of the last reading of the host
	noHost   bool
}

const podUID = "6c61b571-6b3c-4d5e-8f0b-9b8d5c1a0001"

func newPlayer(trace stalltest.Trace) *player {
	p := &player{judge: stall.New(0, time.Second), trace: trace}
	meta := metaOf(&trace.Pod)
	for i := range trace.Devices {
		p.readings = append(p.readings, stall.Reading{
			Key: stall.Key{
				Namespace: "team", Claim: "job",
				Device: driver.ID{Driver: "gpu.test", Pool: "node", Device: string(rune('a' + i))},
			},
			Group: "team/" + meta.WorkloadKind + "/job", Pods: []string{podUID}, Elsewhere: !meta.Alone,
			Limit: trace.Model.LimitWatts, MaxLimit: trace.Model.LimitWatts,
		})
	}
	return p
}

// metaOf returns what the exporter knows of a pod.
func metaOf(of *stalltest.Pod) *podresources.PodMeta {
	pod := corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = "pod", "team", podUID
	pod.Labels, pod.Annotations = of.Labels, of.Annotations
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways // the default, and that of servers
	if of.WorkloadKind != "" && of.WorkloadKind != "Pod" {
		controller := true
		pod.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "batch/v1", Kind: of.WorkloadKind, Name: "job", Controller: &controller,
		}}
	}
	_, facts, ok := podresources.NewPodFacts(&pod, &podresources.Selection{})
	if !ok {
		panic("the pod is not valid")
	}
	return facts.Meta
}

// play passes a sample, and returns the verdict on the first device.
func (p *player) play(s *stalltest.Sample) stall.Verdict {
	for i := range p.readings {
		r := &p.readings[i]
		switch {
		case i == 0 || s.Others == stalltest.InStep || s.Others == stalltest.OthersUnknown:
			r.Values = valuesOf(&s.Values)
		case s.Others == stalltest.OthersGone && i < len(p.readings)-1:
			r.Values = valuesOf(&s.Values) // the last one has ended
		default:
			r.Values = valuesOf(&s.Values)
			others(&r.Values, s.Others, &p.trace.Model)
		}
	}
	if s.At.Sub(p.hosted) >= p.judge.Window() && !p.noHost {
		p.hosted = s.At
		p.judge.ObserveHost(s.At, map[string]stall.HostValues{podUID: hostOf(&s.Values)})
	}
	return p.judge.Observe(s.At, p.readings)[0]
}

// others replaces the activity of another rank of the pod.
func others(v *stall.Values, do stalltest.Others, m *stalltest.Model) {
	for _, s := range []stall.Signal{
		stall.Tensor, stall.FP64, stall.FP32, stall.FP16, stall.Int, stall.SM, stall.Memory, stall.Copy, stall.Media,
	} {
		if v.Measured(s) {
			v[s] = 0
		}
	}
	set := func(s stall.Signal, value float64) {
		if v.Measured(s) {
			v[s] = value
		}
	}
	set(stall.Busy, 0)
	set(stall.Power, m.ContextWatts)
	switch do {
	case stalltest.OthersWork:
		set(stall.Busy, 1)
		set(stall.Tensor, 0.4)
		set(stall.SM, 0.8)
		set(stall.Memory, 0.4)
		set(stall.Power, m.LimitWatts*0.9)
	case stalltest.OthersSpin:
		set(stall.Busy, 1)
		set(stall.SM, 0.12)
		set(stall.Int, 0.003)
		set(stall.Power, m.ContextWatts+5)
	}
}

// valuesOf returns the signals of a device.
func valuesOf(of *stalltest.Values) stall.Values {
	v := stall.Values{
		stall.Busy: of[stalltest.Busy], stall.Power: of[stalltest.Power], stall.Tensor: of[stalltest.Tensor],
		stall.FP64: of[stalltest.FP64], stall.FP32: of[stalltest.FP32], stall.FP16: of[stalltest.FP16],
		stall.Int: of[stalltest.Int], stall.SM: of[stalltest.SM], stall.Memory: of[stalltest.DRAM],
		stall.Copy: of[stalltest.Copy], stall.Media: math.NaN(),
		stall.Receive: of[stalltest.NetworkReceived], stall.Send: of[stalltest.NetworkTransmitted],
		stall.PCIe:   of[stalltest.PCIeReceived] + of[stalltest.PCIeTransmitted],
		stall.Fabric: of[stalltest.FabricReceived] + of[stalltest.FabricTransmitted],
		stall.Clock:  of[stalltest.Clock] / of[stalltest.ClockMax],
	}
	if v[stall.Receive]+v[stall.Send] == 0 { // the claim has no network device
		v[stall.Receive], v[stall.Send] = math.NaN(), math.NaN()
	}
	for _, f := range [...]stalltest.Field{stalltest.Decoder, stalltest.Encoder, stalltest.JPEG, stalltest.OFA} {
		if !math.IsNaN(of[f]) {
			v.AtLeast(stall.Media, of[f])
		}
	}
	return v
}

// hostOf returns the signals of the pod on the host.
func hostOf(of *stalltest.Values) stall.HostValues {
	return stall.HostValues{
		stall.CPU:        of[stalltest.HostCPU],
		stall.Storage:    of[stalltest.HostRead] + of[stalltest.HostWritten],
		stall.Faults:     of[stalltest.PageFaults],
		stall.HostMemory: of[stalltest.HostAnon] + of[stalltest.HostFile],
		stall.PodNetwork: of[stalltest.PodReceived] + of[stalltest.PodTransmitted],
	}
}

func nan() float64 { return math.NaN() }
