// Package judgetest plays the jobs of stalltest to a judge of stall, as the exporter does.
package judgetest

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Player passes a trace to a judge: that of the first device, and for the other devices of the pod
// what the trace says of them.
type Player struct {
	Judge    *stall.Judge
	Readings []stall.Reading // of the devices of the pod
	NoHost   bool            // the pod's cgroups can't be read

	trace  stalltest.Trace
	hosted time.Time // of the last reading of the host
}

const podUID = "6c61b571-6b3c-4d5e-8f0b-9b8d5c1a0001"

// New returns a player with a judge that has seen nothing.
func New(trace stalltest.Trace) (*Player, error) {
	p := &Player{Judge: stall.New(0, time.Second), trace: trace}
	meta, err := metaOf(&trace.Pod)
	if err != nil {
		return nil, err
	}
	for i := range trace.Devices {
		p.Readings = append(p.Readings, stall.Reading{
			Key: stall.Key{
				Namespace: "team", Claim: "job",
				Device: driver.ID{Driver: "gpu.test", Pool: "node", Device: string(rune('a' + i))},
			},
			Group: "team/" + meta.WorkloadKind + "/job", Pods: []string{podUID}, Elsewhere: !meta.Alone,
			Limit: trace.Model.LimitWatts, MaxLimit: trace.Model.LimitWatts,
		})
	}
	return p, nil
}

// metaOf returns what the exporter knows of a pod.
func metaOf(of *stalltest.Pod) (*podresources.PodMeta, error) {
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
		return nil, fmt.Errorf("the pod of a %s is not valid", of.WorkloadKind)
	}
	return facts.Meta, nil
}

// Play passes a sample, and returns the verdicts on the devices of the pod, valid until the next
// call.
func (p *Player) Play(s *stalltest.Sample) []stall.Verdict {
	for i := range p.Readings {
		r := &p.Readings[i]
		r.Values = valuesOf(&s.Values)
		switch {
		case i == 0, s.Others == stalltest.InStep, s.Others == stalltest.OthersUnknown,
			s.Others == stalltest.OthersGone && i < len(p.Readings)-1: // the last one has ended
		default:
			others(&r.Values, s.Others, &p.trace.Model)
		}
	}
	if s.At.Sub(p.hosted) >= p.Judge.Window() && !p.NoHost {
		p.hosted = s.At
		p.Judge.ObserveHost(s.At, map[string]stall.HostValues{podUID: hostOf(&s.Values)})
	}
	verdicts, _ := p.Judge.Observe(s.At, p.Readings)
	return verdicts
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

// hostOf returns the signals of the pod on the host. Of recordings, what was not recorded is left
// out: bytes read from block devices, and the page cache.
func hostOf(of *stalltest.Values) stall.HostValues {
	return stall.HostValues{
		stall.CPU:        of[stalltest.HostCPU],
		stall.Storage:    sum(of[stalltest.HostRead], of[stalltest.HostWritten]),
		stall.Faults:     of[stalltest.PageFaults],
		stall.HostMemory: sum(of[stalltest.HostAnon], of[stalltest.HostFile]),
		stall.PodNetwork: sum(of[stalltest.PodReceived], of[stalltest.PodTransmitted]),
	}
}

// sum returns the sum of the values that are measured, NaN if none is.
func sum(a, b float64) float64 {
	switch {
	case math.IsNaN(a):
		return b
	case math.IsNaN(b):
		return a
	default:
		return a + b
	}
}
