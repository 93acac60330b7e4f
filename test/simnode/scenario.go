package simnode

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/sim"
)

// Scenario is the workload of a node: pods that run all the time, and pods that start and end in a
// cycle that repeats.
type Scenario struct {
	Devices  []Device
	Standing []PodSpec
	Cycle    time.Duration
	Visits   []Visit  // within the cycle
	Faults   []Fault  // within the cycle
	Outage   sim.Span // time in which the source of the devices fails; the caller implements it
}

// Fault is a page fault of a pod's process on a device: the kernel log gets an XID that names both.
type Fault struct {
	At             time.Duration // since the start of the cycle
	Namespace, Pod string
	Device         string
}

// Visit is a pod that starts and ends.
type Visit struct {
	From, To time.Duration // since the start of the cycle
	Pod      PodSpec
}

const (
	gibibyte = 1 << 30
	// errorInterval is how often the unhealthy device has an error.
	errorInterval = 20 * time.Second
	// xidInterval is how often a process on gpu-1 has a page fault: XID 31.
	xidInterval = 45 * time.Second
	pageFault   = 31
	// flapInterval is how often the link of eth1 goes down.
	flapInterval = 4*time.Minute + 10*time.Second
	// The source of all devices fails for some seconds, and the driver loses gpu-4 for some minutes:
	// so late that a viewer of the demo first sees it working, and after the job that hangs has ended.
	outageAt, outageLength = 9*time.Minute + 35*time.Second, 5 * time.Second
	lossAt, lossLength     = 6*time.Minute + 30*time.Second, 90 * time.Second
	// cycle is longer than the exporter's retention, so that a pod that starts again counts as new.
	cycle = 10 * time.Minute
)

// Demo is the scenario of a node with 12 GPUs, one of them partitioned and one shared, and 4
// network interfaces. It has long training and inference, pods that start and end, and pods that
// leave their devices idle. A job hangs at a time since the start of the cycle, at most
// DefaultHang. Three ranks of a training run side by side, one of them slow, and a job has low
// efficiency.
func Demo(seed uint64, hang time.Duration) Scenario {
	s := Scenario{
		Cycle: cycle, Devices: demoDevices(seed),
		Outage: sim.Span{First: outageAt, Every: cycle, Length: outageLength},
	}
	s.Standing = slices.Concat(busyPods(seed), rankPods(), sharingPods(seed), idlePods(), infraPods(seed, s.Devices))
	s.Visits = slices.Concat(batchVisits(seed), regularVisits(seed), []Visit{hangingVisit(hang)})
	for at := 20 * time.Second; at < cycle; at += xidInterval {
		s.Faults = append(s.Faults, Fault{At: at, Namespace: "team-nlp", Pod: "embedder-0", Device: "gpu-7"})
	}
	return s
}

// checkpoint is the memory of a checkpoint, which lasts for less than the time between two scrapes.
func checkpoint() sim.Spike {
	return sim.Spike{First: 4 * time.Second, Every: 40 * time.Second, Length: 2 * time.Second, Bytes: 7 * gibibyte}
}

func demoDevices(seed uint64) []Device {
	var out []Device
	for i := range 6 {
		out = append(out, GPU(seed, i))
	}
	out[1].XIDEvery, out[1].XID = xidInterval, pageFault
	out[5] = Unhealthy(out[5])
	out = append(out, PartitionedGPU(seed, 6, 4)...)
	out[4].Lost = sim.Span{First: lossAt, Every: cycle, Length: lossLength}
	out = append(out, Logged(Shared(GPU(seed, 7)), "0000:47:00.0"))
	for i := 8; i < 12; i++ {
		out = append(out, GPU(seed, i))
	}
	slow, wasteful := &out[len(out)-2], &out[len(out)-1]
	slow.ThrottledShare, slow.Slowed = 0.6, 0.3
	wasteful.TensorPart = 0.04
	for i := range 4 {
		out = append(out, NIC(i))
	}
	out[len(out)-3].LinkDownEvery = flapInterval // eth1
	return out
}

// device returns a claim of the pod's own for devices with this load.
func device(claim string, load sim.Profile, resident float64, devices ...string) ClaimSpec {
	return ClaimSpec{Name: claim, Requests: []Request{{Name: claim, Devices: devices, Load: load, Resident: resident}}}
}

// share returns a claim of the pod's own for some memory of a shared device.
func share(memory string, load sim.Profile, resident float64, devices ...string) ClaimSpec {
	c := device("gpu", load, resident, devices...)
	c.Requests[0].Memory = memory
	return c
}

// busyPods run training and inference on devices of their own.
func busyPods(seed uint64) []PodSpec {
	training := device("gpus", sim.Ramp(0.1, 0.97, 20*time.Second), 71*gibibyte, "gpu-0", "gpu-1")
	training.Containers = []string{"trainer"}
	training.Requests[0].Spike = checkpoint()
	traffic := device("nic", sim.After(5*time.Second, sim.Constant(0.35)), 0, "eth0")
	traffic.Containers = []string{"trainer"}
	return []PodSpec{
		{
			Namespace: "team-nlp", Name: "llm-pretrain-0", Containers: []string{"trainer", "log-shipper"},
			Owner: "Job/llm-pretrain-workers-0", Labels: map[string]string{
				"jobset.sigs.k8s.io/jobset-name": "llm-pretrain", "kueue.x-k8s.io/local-queue-name": "training",
			},
			Claims: []ClaimSpec{training, traffic},
		},
		// Oversized: a quarter of the GPU, as gpu-6 is divided into, suffices.
		{Namespace: "team-vision", Name: "tagger-0", Owner: "StatefulSet/tagger", Claims: []ClaimSpec{
			device("gpu", sim.Constant(0.15), 11*gibibyte, "gpu-2"),
		}},
		{Namespace: "research", Name: "protein-folding-0", Owner: "StatefulSet/protein-folding", Claims: []ClaimSpec{
			device("gpu", sim.Bursts(seed+1, 8*time.Second, 0.6, 0.02, 0.8), 9*gibibyte, "gpu-6-partition-0"),
		}},
	}
}

// rankPods are a training of three ranks, of which the last is slow because its GPU is throttled,
// and a simulation that is busy but uses the tensor cores hardly at all.
func rankPods() []PodSpec {
	var out []PodSpec
	for i, gpu := range []string{"gpu-8", "gpu-9", "gpu-10"} {
		out = append(out, PodSpec{
			Namespace: "team-vision", Name: fmt.Sprintf("vision-pretrain-%d", i), Owner: "Job/vision-pretrain-workers-0",
			Labels: map[string]string{
				"jobset.sigs.k8s.io/jobset-name": "vision-pretrain", "kueue.x-k8s.io/local-queue-name": "training",
			},
			Claims: []ClaimSpec{device("gpu", sim.Constant(0.92), 58*gibibyte, gpu)},
		})
	}
	return append(out, PodSpec{
		Namespace: "research", Name: "monte-carlo-0", Owner: "StatefulSet/monte-carlo",
		Claims: []ClaimSpec{device("gpu", sim.Constant(0.98), 24*gibibyte, "gpu-11")},
	})
}

// sharingPods share a claim (two pods on gpu-6-partition-3), or a device by its memory (gpu-7).
func sharingPods(seed uint64) []PodSpec {
	detector := func(offset uint64) []ClaimSpec {
		c := device("gpu", sim.Bursts(seed+offset, 3*time.Second, 0.4, 0.05, 0.7), 8*gibibyte, "gpu-6-partition-3")
		c.Object = "detector"
		return []ClaimSpec{c}
	}
	return []PodSpec{
		deployed(PodSpec{Namespace: "team-vision", Name: "detector-a", Claims: detector(2)}, "detector"),
		deployed(PodSpec{Namespace: "team-vision", Name: "detector-b", Claims: detector(3)}, "detector"),
		{Namespace: "team-nlp", Name: "embedder-0", Owner: "StatefulSet/embedder", PID: 4242, Claims: []ClaimSpec{
			share("20Gi", sim.Bursts(seed+4, 5*time.Second, 0.5, 0.05, 0.6), 17*gibibyte, "gpu-7"),
		}},
		{Namespace: "team-vision", Name: "captioner-0", Owner: "StatefulSet/captioner", Claims: []ClaimSpec{
			share("40Gi", sim.Bursts(seed+5, 7*time.Second, 0.7, 0.1, 0.9), 36*gibibyte, "gpu-7"),
		}},
	}
}

// deployed returns the pod as one of a Deployment.
func deployed(p PodSpec, deployment string) PodSpec {
	const hash = "6d4f7c9b8d"
	p.Owner, p.Labels = "ReplicaSet/"+deployment+"-"+hash, map[string]string{"pod-template-hash": hash}
	return p
}

// idlePods hold devices and leave them idle.
func idlePods() []PodSpec {
	return []PodSpec{
		{Namespace: "research", Name: "notebook-ada", Claims: []ClaimSpec{device("gpu", sim.Idle(), 11*gibibyte, "gpu-4")}},
		{Namespace: "research", Name: "notebook-bob", Claims: []ClaimSpec{device("gpu", sim.Idle(), 0, "gpu-6-partition-1")}},
		{Namespace: "team-vision", Name: "uploader-0", Claims: []ClaimSpec{device("nic", sim.Idle(), 0, "eth2")}},
	}
}

// infraPods are a monitor with admin access to all devices, a pod that uses the network, and a pod
// without devices.
func infraPods(seed uint64, devices []Device) []PodSpec {
	admin := func(name, driverName string) Request {
		request := Request{Name: name, Admin: true}
		for _, d := range devices {
			if d.Driver == driverName {
				request.Devices = append(request.Devices, d.Name)
			}
		}
		return request
	}
	return []PodSpec{
		{Namespace: "infra", Name: "device-monitor-7xk2p", Owner: "DaemonSet/device-monitor", Claims: []ClaimSpec{
			{Name: "all", Requests: []Request{admin("gpus", GPUDriver), admin("nics", NICDriver)}},
		}},
		// Badly placed: its interface and its GPU are of different NUMA nodes.
		{Namespace: "infra", Name: "ingest-0", Claims: []ClaimSpec{
			device("nic", sim.Bursts(seed+6, 10*time.Second, 0.3, 0.01, 0.5), 0, "eth1"),
			share("8Gi", sim.Bursts(seed+7, 10*time.Second, 0.3, 0.01, 0.3), 6*gibibyte, "gpu-7"),
		}},
		{Namespace: "infra", Name: "node-agent-q4v9z"},
	}
}

const (
	// DefaultHang is the time since the start of the cycle at which a job of the demo hangs.
	DefaultHang = 2 * time.Minute
	// HangEnd is the time at which its pod ends.
	HangEnd = cycle - 45*time.Second
)

// StalledAfter returns a --stalled.after with which an exporter finds that hang soon. The job has
// then been busy for almost twice as long as its baseline takes.
func StalledAfter(hang time.Duration) time.Duration { return hang / 2 }

// hangingVisit is a training on one device, a kernel of which never ends.
func hangingVisit(hang time.Duration) Visit {
	const start = 2 * time.Second
	return Visit{start, HangEnd, PodSpec{
		Namespace: "research", Name: "finetune-0-rank-0", Owner: "Job/finetune-0", Labels: map[string]string{
			"kueue.x-k8s.io/local-queue-name": "training",
		},
		Claims: []ClaimSpec{device("gpu", sim.Hang(max(start, hang)-start+1, sim.Constant(0.96)), 62*gibibyte, "gpu-3")},
	}}
}

// batchVisits are pods that run for a few seconds each, one after the other on a partition.
func batchVisits(seed uint64) []Visit {
	random := rand.New(rand.NewPCG(seed, 3))
	between := func(low, high time.Duration) time.Duration {
		return low + time.Duration(random.Int64N(int64(high-low)))
	}
	var out []Visit
	from := between(0, 3*time.Second)
	for i := 0; ; i++ {
		to := from + between(2*time.Second, 7*time.Second)
		if to > cycle-time.Second {
			return out
		}
		load := sim.Constant(0.4 + 0.6*random.Float64())
		out = append(out, Visit{from, to, PodSpec{
			Namespace: "team-vision", Name: fmt.Sprintf("batch-%03d", i), Owner: "Job/batch",
			Labels: map[string]string{"kueue.x-k8s.io/local-queue-name": "batch"},
			Claims: []ClaimSpec{device("gpu", load, 14*gibibyte, "gpu-6-partition-2")},
		}})
		from = to + between(500*time.Millisecond, 3*time.Second)
	}
}

// regularVisits start every other minute, two on the shared GPU, so that the shares of the others
// change.
func regularVisits(seed uint64) []Visit {
	var out []Visit
	for from := 10 * time.Second; from < cycle-time.Minute; from += 2 * time.Minute {
		number := int(from / (2 * time.Minute))
		out = append(out,
			Visit{from, from + 50*time.Second, PodSpec{
				Namespace: "research", Name: fmt.Sprintf("evaluation-%d", number),
				Claims: []ClaimSpec{share("10Gi", sim.Bursts(seed+10, 4*time.Second, 0.6, 0.1, 0.8), 8*gibibyte, "gpu-7")},
			}},
			Visit{from + 15*time.Second, from + 45*time.Second, PodSpec{
				Namespace: "infra", Name: fmt.Sprintf("driver-test-%d", number),
				Claims: []ClaimSpec{share("2Gi", sim.Constant(0.9), gibibyte, "gpu-7")},
			}},
		)
	}
	return out
}

// event is the start or the end of a visit, or a fault.
type event struct {
	at    time.Duration
	start bool
	pod   PodSpec
	fault *Fault
}

// events returns the starts and ends of the visits, and the faults, in order of time, ends first.
func (s Scenario) events() []event {
	var out []event
	for _, v := range s.Visits {
		out = append(out, event{at: v.From, start: true, pod: v.Pod}, event{at: v.To, pod: v.Pod})
	}
	for i := range s.Faults {
		out = append(out, event{at: s.Faults[i].At, start: true, fault: &s.Faults[i]})
	}
	slices.SortStableFunc(out, func(a, b event) int {
		first := func(e event) int {
			if e.start {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(first(a), first(b)))
	})
	return out
}

// Run runs the scenario on a node in real time until ctx ends. It does not stop the pods that are
// running then.
func (s Scenario) Run(ctx context.Context, n *Node) error {
	for _, p := range s.Standing {
		if err := n.StartPod(p); err != nil {
			return fmt.Errorf("play scenario: %w", err)
		}
	}
	events := s.events()
	for begin := n.now(); ; begin = begin.Add(s.Cycle) {
		for _, e := range events {
			if !driver.Pause(ctx, begin.Add(e.at).Sub(n.now())) {
				return nil
			}
			if err := n.play(e); err != nil {
				return fmt.Errorf("play scenario at %v: %w", e.at, err)
			}
		}
		if !driver.Pause(ctx, begin.Add(s.Cycle).Sub(n.now())) {
			return nil
		}
	}
}

func (n *Node) play(e event) error {
	if e.fault != nil {
		return n.Fault(*e.fault)
	}
	if e.start {
		return n.StartPod(e.pod)
	}
	return n.StopPod(e.pod.Namespace, e.pod.Name)
}

// Trouble is something that happens to a device, or to the source of all, in the demo.
type Trouble struct {
	Kind         string        // of the incident
	Code, Device string        // Device: "" for the source
	Pods         []string      // pods that it hits, as NAMESPACE/NAME
	At           time.Duration // when it begins, since the start of the node
	For          time.Duration // 0: it is momentary
}

// Story returns what happens in the demo until a time since the start of the node, in order. begin
// is the start of the scenario, since the start of the node.
func (s Scenario) Story(begin, until time.Duration) []Trouble {
	var out []Trouble
	add := func(t Trouble) {
		if t.At <= until {
			out = append(out, t)
		}
	}
	repeated := func(t Trouble, every time.Duration) {
		for at := every; every > 0 && at <= until; at += every {
			t.At = at
			add(t)
		}
	}
	for i := range s.Devices {
		d := &s.Devices[i]
		pods := s.standing(d.Name)
		repeated(Trouble{Kind: "ecc_uncorrected", Device: d.Name, Pods: pods}, d.UncorrectedErrorEvery)
		repeated(Trouble{Kind: "link_down", Device: d.Name, Pods: pods}, d.LinkDownEvery)
		repeated(Trouble{Kind: "xid", Code: "31", Device: d.Name, Pods: pods}, d.XIDEvery)
		for _, at := range d.Lost.Begins(until) {
			add(Trouble{Kind: "device_lost", Code: "gpu_lost", Device: d.Name, Pods: pods, At: at, For: d.Lost.Length})
		}
	}
	for _, at := range s.Outage.Begins(until) {
		add(Trouble{Kind: "source_down", Code: "server_error", At: at, For: s.Outage.Length})
	}
	for at := begin; at <= until; at += s.Cycle {
		for _, f := range s.Faults {
			add(Trouble{Kind: "xid", Code: "31", Device: f.Device, Pods: []string{f.Namespace + "/" + f.Pod}, At: at + f.At})
		}
		for _, v := range s.Visits {
			if hangs, device := v.hangs(); hangs > 0 {
				add(Trouble{
					Kind: "claim_stalled", Device: device, Pods: []string{v.Pod.Namespace + "/" + v.Pod.Name},
					At: at + v.From + hangs, For: v.To - v.From - hangs,
				})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Trouble) int { return int(a.At - b.At) })
	return out
}

// standing returns the pods that always hold a device, without admin access.
func (s Scenario) standing(device string) []string {
	var out []string
	for _, p := range s.Standing {
		for _, c := range p.Claims {
			if slices.ContainsFunc(c.Requests, func(r Request) bool { return !r.Admin && slices.Contains(r.Devices, device) }) {
				out = append(out, p.Namespace+"/"+p.Name)
			}
		}
	}
	return out
}

// hangs returns the time since its start at which the pod hangs, and the device; 0: never.
func (v *Visit) hangs() (time.Duration, string) {
	for _, c := range v.Pod.Claims {
		for _, r := range c.Requests {
			if at := r.Load.HangsAt(); at > 0 {
				return at, r.Devices[0]
			}
		}
	}
	return 0, ""
}

// String says what happens, in a line.
func (t Trouble) String() string {
	out := t.Kind
	if t.Code != "" {
		out += " " + t.Code
	}
	if t.Device != "" {
		out += " of " + t.Device
	}
	if t.For > 0 {
		out += " for " + t.For.Round(time.Second).String()
	}
	if len(t.Pods) > 0 {
		out += ", hits " + strings.Join(t.Pods, ", ")
	}
	return out
}

// PluginResource is the extended resource of NVIDIA's device plugin, which names GPUs by UUID.
const PluginResource = "nvidia.com/gpu"

// PluginGPU returns a GPU that a device plugin offers under its UUID, and no slice lists.
func PluginGPU(seed uint64, index int) Device {
	d := sim.GPU(PluginResource, "", seed+uint64(index))
	d.Name, d.Hardware.Vendor, d.Hardware.Model = d.Hardware.UUID, "nvidia", gpuModel
	return Device{Device: d, Plugin: true}
}

// WithPlugin returns the scenario on a node that is in the middle of a migration: a device plugin
// still offers three more GPUs, of which a pod uses one, a pod leaves one idle, and one is free.
func (s Scenario) WithPlugin(seed uint64) Scenario {
	const first = 12 // after the GPUs of the demo
	var plugged []Device
	for i := range 3 {
		plugged = append(plugged, PluginGPU(seed, first+i))
	}
	given := func(i int, load sim.Profile, resident float64) []Request {
		return []Request{{Devices: []string{plugged[i].Name}, Load: load, Resident: resident}}
	}
	s.Devices = slices.Concat(s.Devices, plugged)
	s.Standing = slices.Concat(s.Standing, []PodSpec{
		{
			Namespace: "team-nlp", Name: "translator-0", Owner: "StatefulSet/translator",
			Plugged: given(0, sim.Bursts(seed+20, 6*time.Second, 0.7, 0.3, 0.9), 40*gibibyte),
		},
		{Namespace: "research", Name: "notebook-cleo", Plugged: given(1, sim.Idle(), 3*gibibyte)},
	})
	return s
}

// Only returns the part of the scenario that has the devices of one driver, or of the device
// plugin.
func (s Scenario) Only(driverName string) Scenario {
	s.Devices = slices.DeleteFunc(slices.Clone(s.Devices), func(d Device) bool { return d.Driver != driverName })
	lacks := func(device string) bool {
		return !slices.ContainsFunc(s.Devices, func(d Device) bool { return d.Name == device })
	}
	left := func(of []Request) []Request {
		return slices.DeleteFunc(slices.Clone(of), func(r Request) bool { return len(r.Devices) == 0 || lacks(r.Devices[0]) })
	}
	reduced := func(p PodSpec) PodSpec {
		p.Plugged, p.Claims = left(p.Plugged), slices.Clone(p.Claims)
		for i := range p.Claims {
			p.Claims[i].Requests = left(p.Claims[i].Requests)
		}
		p.Claims = slices.DeleteFunc(p.Claims, func(c ClaimSpec) bool { return len(c.Requests) == 0 })
		return p
	}
	s.Standing, s.Visits = slices.Clone(s.Standing), slices.Clone(s.Visits)
	for i := range s.Standing {
		s.Standing[i] = reduced(s.Standing[i])
	}
	for i := range s.Visits {
		s.Visits[i].Pod = reduced(s.Visits[i].Pod)
	}
	without := func(p PodSpec) bool { return len(p.Claims)+len(p.Plugged) == 0 }
	s.Standing = slices.DeleteFunc(s.Standing, without)
	s.Visits = slices.DeleteFunc(s.Visits, func(v Visit) bool { return without(v.Pod) })
	s.Faults = slices.DeleteFunc(slices.Clone(s.Faults), func(f Fault) bool { return lacks(f.Device) })
	return s
}

// offer makes the kubelet say what the device plugin offers.
func (n *Node) offer() {
	var ids []string
	for _, name := range slices.Sorted(maps.Keys(n.devices)) {
		if n.devices[name].Plugin {
			ids = append(ids, name)
		}
	}
	if len(ids) > 0 {
		n.Kubelet.Offer(PluginResource, ids...)
	}
}

// plugged returns the uses of the devices that a device plugin gives to the pod.
func (n *Node) plugged(p *pod, from time.Time) (out []held) {
	for _, request := range p.spec.Plugged {
		for _, name := range request.Devices {
			out = append(out, held{
				Use: Use{
					Pod: p.Pod, PodUID: p.uid, Claim: podresources.Claim{Namespace: p.Namespace},
					Device: n.devices[name].id(), From: from,
				},
				does: request,
			})
		}
	}
	return out
}

// withPlugged adds the devices of the device plugin to the pod's first container.
func (p *pod) withPlugged(containers []*v1.ContainerResources) {
	for _, request := range p.spec.Plugged {
		podresourcestest.WithDevices(containers[0], PluginResource, request.Devices...)
	}
}
