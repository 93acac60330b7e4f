package main

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
)

// device is a device of the node.
type device struct {
	id        driver.ID
	hardware  driver.Hardware
	listed    bool // in the inventory
	processes []driver.Process
}

// source reads series of all devices.
type source struct {
	name   string
	down   bool
	series []*series
}

type series struct {
	of      *device
	reading driver.Reading
	rate    float64
	every   time.Duration // how often the hardware refreshes it
	missing bool
}

// addDevices adds devices, partitions of one of them, and sources.
func (n *node) addDevices() {
	add := func(name string, parent *device, part float64) *device {
		d := &device{
			id:       driver.ID{Driver: "gpu.example.com", Pool: "node1", Device: name},
			hardware: driver.Hardware{UUID: "GPU-" + name}, listed: true,
		}
		if parent != nil {
			d.hardware.Kind, d.hardware.Parent, d.hardware.ParentShare = driver.KindPartition, parent.hardware.UUID, part
		}
		n.devices = append(n.devices, d)
		return d
	}
	add("gpu-0", nil, 0)
	parent := add("gpu-1", nil, 0)
	for i := range n.IntN(3) {
		add(fmt.Sprint("gpu-1-part-", i), parent, draw(n, 0, 0.25, 0.5))
	}
	n.addSource("a", driver.Energy, driver.Power, driver.IOBytes)
	n.addSource("b", driver.Energy, driver.Utilization, driver.MemoryUsed, driver.Errors)
}

func (n *node) addSource(name string, quantities ...driver.Quantity) {
	s := &source{name: name}
	for _, d := range n.devices {
		for _, q := range quantities {
			if d.hardware.Parent != "" && q != driver.Utilization && q != driver.MemoryUsed {
				continue
			}
			of := &series{of: d, every: draw(n, 0, 0, 2*time.Second, 30*time.Second), reading: driver.Reading{Quantity: q}}
			switch q {
			case driver.IOBytes:
				of.reading.Labels = driver.Labels{"pcie", "receive"}
			case driver.Errors:
				of.reading.Labels = driver.Labels{"xid", "31"}
			}
			of.reading.At, of.rate = n.now, n.rate(q)
			s.series = append(s.series, of)
		}
	}
	n.sources = append(n.sources, s)
}

func (n *node) rate(q driver.Quantity) float64 {
	switch q {
	case driver.Utilization:
		return draw(n, 0, 0.3, 1)
	case driver.Errors:
		return draw(n, 0, 0, 0, 0.05)
	default:
		return draw(n, 0.1, 0.7, 100, 700)
	}
}

// refresh makes the hardware refresh what is due.
func (s *source) refresh(n *node) {
	for _, of := range s.series {
		r := &of.reading
		if n.now.Sub(r.At) < of.every {
			continue
		}
		if r.Quantity.Spec().Type == driver.Counter {
			r.Value += of.rate * n.now.Sub(r.At).Seconds()
		} else {
			r.Value = of.rate
		}
		r.At = n.now
	}
}

// happen makes something happen to the source.
func (s *source) happen(n *node) {
	of := draw(n, s.series...)
	counts := of.reading.Quantity.Spec().Type == driver.Counter
	switch n.IntN(8) {
	case 0:
		s.down = !s.down && n.chance(3)
	case 1:
		of.missing = !of.missing && n.chance(2)
	case 2:
		if counts {
			of.reading.Since, of.reading.Value, of.reading.At = n.now, 0, n.now
		}
	case 3:
		if counts {
			of.reading.Value *= draw(n, 0.95, 0.5, 0.3, 0)
		}
	default:
		of.rate = n.rate(of.reading.Quantity)
	}
}

// use starts, changes or ends a process that uses a device.
func (n *node) use() {
	d, p := draw(n, n.devices...), driver.Process{PID: 1 + n.IntN(7)}
	d.processes = slices.DeleteFunc(slices.Clone(d.processes), func(o driver.Process) bool { return o.PID == p.PID })
	for _, q := range []driver.Quantity{driver.Utilization, driver.MemoryUsed} {
		if !n.chance(4) {
			p.Readings = append(p.Readings, driver.Reading{Quantity: q, Value: n.rate(q), At: n.now})
		}
	}
	if !n.chance(2) {
		d.processes = append(d.processes, p)
	}
}

// input returns the input of the join.
func (n *node) input() join.Input {
	in := join.Input{View: n.view, Inventory: driver.Inventory{}, PodOf: map[int]string{}}
	for i := range 3 {
		for j := range 2 {
			in.PodOf[1+2*i+j] = fmt.Sprint("uid-p", i, "-", j) // a seventh process has no pod
		}
	}
	for _, d := range n.devices {
		if d.listed {
			in.Inventory[d.id] = driver.Entry{Hardware: d.hardware}
		}
	}
	for _, s := range n.sources {
		in.Sources = append(in.Sources, s.samples())
	}
	return in
}

// samples returns the samples of a source, in the order of their devices.
func (s *source) samples() join.SourceSamples {
	out := join.SourceSamples{Name: s.name}
	samples := map[*device]*driver.Sample{}
	for _, of := range s.series {
		if s.down || of.missing {
			continue
		}
		if samples[of.of] == nil {
			samples[of.of] = &driver.Sample{Hardware: driver.Hardware{UUID: of.of.hardware.UUID}}
			if s.name == "b" {
				samples[of.of].Processes = slices.Clone(of.of.processes)
			}
		}
		samples[of.of].Readings = append(samples[of.of].Readings, of.reading)
	}
	for _, d := range slices.SortedFunc(maps.Keys(samples), func(a, b *device) int { return a.id.Compare(b.id) }) {
		out.Samples = append(out.Samples, *samples[d])
	}
	return out
}

// evidence is a book that gets random evidence about the node: what pods, claims and cgroups are
// said to be need not agree with what the kubelet lists.
type evidence struct {
	book    *holders.Book
	kubelet int // number of its process
	parsed  []podresources.Allocation
	of      []podresources.Allocation // the rows that parsed was made of
	pods    map[podresources.Pod]struct{}
}

func newEvidence(n *node) *evidence {
	return &evidence{book: holders.NewBook(draw(n, 5*time.Second, time.Minute), nil)}
}

// happen adds a piece of evidence.
func (e *evidence) happen(n *node) {
	at := n.now.Add(-time.Duration(n.IntN(500)) * time.Millisecond)
	uid := n.podUID(n.podName())
	switch n.IntN(12) {
	case 0, 1, 2:
		e.book.PodChanged(n.podFacts(true), at)
	case 3:
		if n.chance(3) {
			e.book.PodDeleted(uid, at)
		}
	case 4:
		var pods []podresources.PodFacts
		local := n.chance(2)
		for range n.IntN(5) {
			pods = append(pods, n.podFacts(local))
		}
		e.book.PodsListed(pods, local, at)
	case 5, 6, 7:
		e.book.ClaimRead(n.claimName(), n.claimFacts(at))
	case 8:
		e.book.ClaimDeleted(n.claimName(), at)
	case 9:
		e.book.Changed(podresources.Change{At: at, Gone: n.chance(2), PodUID: uid})
	case 10:
		e.book.Cgroups(n.cgroups(), at)
	case 11:
		if e.kubelet++; n.chance(2) {
			e.book.Watching(draw(n, at, time.Time{}), n.now)
		}
	}
}

// podFacts returns the object of a pod.
func (n *node) podFacts(local bool) podresources.PodFacts {
	pod := n.podName()
	number := n.IntN(2)
	p := podresources.PodFacts{
		Pod: pod, UID: fmt.Sprint("uid-", pod.Name, "-", number), Local: local, Started: n.chance(2), Final: n.chance(6),
		Created: start().Add(time.Duration(number) * time.Hour),
	}
	if p.Started && n.chance(2) {
		p.Running = 1
	}
	for i := range n.IntN(3) {
		claim := podresources.PodClaim{Name: fmt.Sprint("gpu", i), Claim: draw(n, "", n.claimName().Name)}
		p.Claims = append(p.Claims, claim)
		p.Containers = append(p.Containers, podresources.PodContainer{
			Name: draw(n, "main", "side"), Listed: n.chance(2),
			Uses: []podresources.ClaimUse{{Name: claim.Name, Request: draw(n, "", "", "r")}},
		})
	}
	return p
}

// claimFacts returns the object of a claim.
func (n *node) claimFacts(read time.Time) podresources.ClaimFacts {
	c := podresources.ClaimFacts{
		UID: n.claimUID(), Read: read, AllocatedAt: n.now.Truncate(time.Second), Reserved: map[string]string{},
		ReservedOther: n.chance(10), PodClaimName: draw(n, "", "", "gpu0"),
	}
	for range n.IntN(3) {
		pod := n.podName()
		c.Reserved[n.podUID(pod)] = pod.Name
	}
	shares := n.chance(3)
	for i := range n.IntN(3) {
		r := podresources.ClaimResult{Device: draw(n, n.devices...).id, Request: draw(n, "r", "q"), Admin: n.chance(10)}
		if shares {
			r.ShareID = fmt.Sprint("s", i)
		}
		c.Results = append(c.Results, r)
	}
	return c
}

// cgroups returns random states of the cgroups of all pods.
func (n *node) cgroups() map[string]podresources.CgroupState {
	out := map[string]podresources.CgroupState{}
	for i := range 3 {
		for j := range 2 {
			if state := n.IntN(4); state < 3 {
				out[fmt.Sprint("uid-p", i, "-", j)] = podresources.CgroupState(state)
			}
		}
	}
	return out
}

// decide asks the kubelet, and returns who holds what.
func (e *evidence) decide(n *node) ([]podresources.Allocation, holders.Signs) {
	asked := n.now.Add(-time.Duration(n.IntN(100)) * time.Millisecond)
	switch {
	case n.silent:
		e.book.NotAnswered(n.cgroups(), asked)
	case n.chance(4) && e.book.Quiet(n.now):
	default:
		e.answer(n, asked)
	}
	held, signs := e.book.Holds(n.now, n.view.At)
	return held.Allocations, signs
}

// answer gives the book an answer of the kubelet. Its rows have no UIDs.
func (e *evidence) answer(n *node, asked time.Time) {
	if e.pods == nil || len(e.of) != len(n.rows) || len(n.rows) > 0 && &e.of[0] != &n.rows[0] {
		e.of, e.parsed, e.pods = n.rows, nil, map[podresources.Pod]struct{}{}
		for _, a := range n.rows {
			row := podresources.Allocation{Claim: a.Claim, Device: a.Device, ShareID: a.ShareID, CDI: a.CDI}
			for _, h := range a.Holders {
				row.Holders = append(row.Holders, podresources.Holder{Pod: h.Pod, Container: h.Container})
				e.pods[h.Pod] = struct{}{}
			}
			podresources.SortHolders(&row)
			e.parsed = append(e.parsed, row)
		}
		if n.chance(2) {
			e.pods[podresources.Pod{Namespace: "kube-system", Name: "other"}] = struct{}{}
		}
	}
	a := holders.Answer{
		Asked: asked, Arrived: n.now, Kubelet: podresources.Instance(fmt.Sprint(e.kubelet)), Pods: e.pods,
		Allocations: e.parsed, Cgroups: n.cgroups(),
	}
	if n.chance(3) {
		pod := n.podName()
		a.UIDs = map[podresources.Pod]string{pod: n.podUID(pod)}
	}
	e.book.Answered(&a)
}
