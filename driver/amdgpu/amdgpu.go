// Package amdgpu reads AMD GPUs and their partitions from the sysfs of the kernel drivers amdgpu
// and KFD (compute), without ROCm or another library.
//
// Its sources are the kernel's documentation (Documentation/gpu/amdgpu) and headers. Files that
// take long to read are not used: pcie_bw blocks for a second on some GPUs.
//
// Bounds (max…) are for what the kernel sends.
package amdgpu

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
)

const (
	vendor = "amd"
	// callTimeout is how long a sample waits for the files of a GPU, which block during a reset.
	callTimeout = time.Second
	// slowEvery is the time between two reads of values that change slowly, or that the kernel
	// requests from the hardware.
	slowEvery = 10 * time.Second
	// slowAtOnce is the maximum number of GPUs whose slow values one sample reads.
	slowAtOnce = 8
)

// Source reads all AMD GPUs. It is a [driver.Source].
//
// Every sample reads utilization, memory, power and gpu_metrics. The other values are read every 10
// s, for at most 8 GPUs in one sample. A separate goroutine reads each GPU, so that a GPU that
// blocks does not delay the others. The goroutine ends when the read returns; a GPU has at most
// one.
type Source struct {
	root   string
	now    func() time.Time
	parser *parser
	lister *drmcard.Lister
	reader sysfs.Reader
	open   func(folder string) (sysfs.Dir, error)
	list   func(kfd string) (nodes []drmcard.Node, denied bool, err error)

	callTimeout time.Duration

	generation uint64 // of KFD's topology when it was last listed
	nodes      []drmcard.Node
	gpus       []*gpu
	using      *processes
	usage      *driver.Call[usage]
}

// usage is the use of the KFD nodes by processes.
type usage struct {
	uses map[uint64][]use // nil: unknown
	at   time.Time
	err  error
}

var _ driver.Source = (*Source)(nil)

// FromHost returns the source of a machine.
func FromHost(h driver.Host) (driver.Source, error) { return New(h.Sysfs), nil }

// New returns a source that reads the sysfs mounted at a path. It reads nothing yet.
func New(root string) *Source {
	s := &Source{
		root: root, now: time.Now, parser: newParser(), lister: drmcard.NewLister(root), callTimeout: callTimeout,
		list: drmcard.Nodes,
		open: func(folder string) (sysfs.Dir, error) { return sysfs.OpenDir(sysfs.WorkingDir, folder) },
	}
	s.using = &processes{
		root: filepath.Join(s.kfd(), "proc"), now: func() time.Time { return s.now() }, known: map[int]*process{},
	}
	return s
}

// Name returns amdgpu.
func (*Source) Name() string { return "amdgpu" }

// Fills returns the quantities that the source reads.
func Fills() []driver.Quantity {
	return []driver.Quantity{
		driver.Utilization, driver.EngineUtilization, driver.MemoryUsed, driver.MemoryCapacity, driver.Power, driver.Energy,
		driver.Temperature, driver.Clock, driver.IOBytes, driver.Errors, driver.ThrottledSeconds, driver.PowerLimit,
		driver.ClockMax,
		driver.ThrottleActive, driver.LinkWidth, driver.LinkWidthMax, driver.LinkGeneration, driver.LinkGenerationMax,
		driver.FanSpeed, driver.FanRotation, driver.HostMemoryUsed, driver.HostMemoryCapacity, driver.Voltage,
	}
}

func (s *Source) kfd() string { return drmcard.KFD(s.root) }

// Sample returns a sample of each GPU and each partition; driver.ErrAbsent if there are none. A GPU
// that did not answer in time has a sample without readings, and an error. Values that could not be
// read are absent.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read AMD GPUs: %w", err)
	}
	cards, fresh, err := s.lister.Cards(s.now())
	if err != nil {
		return nil, err
	}
	var bad sysfs.Problems
	if fresh || s.changed() {
		bad.Add(s.adopt(cards))
	}
	if len(s.gpus) == 0 {
		return nil, cmp.Or(bad.Err(), errNone())
	}
	ctx, cancel := context.WithTimeout(ctx, s.callTimeout)
	defer cancel()
	s.start()
	for _, g := range s.gpus {
		if !g.call.Late() {
			g.call.Wait(ctx)
		}
	}
	if !s.usage.Late() {
		s.usage.Wait(ctx)
	}
	return s.collect(&bad), bad.Err()
}

// errNone returns the error for a machine without a GPU. Package driver/bus drops it on machines
// without AMD hardware.
func errNone() error {
	return driver.WithReason(driver.ReasonDriverNotLoaded,
		fmt.Errorf("%w: no device of class drm has the kernel driver amdgpu", driver.ErrAbsent))
}

// changed reports whether the partitions of GPUs have changed, by the generation of KFD's topology.
func (s *Source) changed() bool { return len(s.gpus) > 0 && s.topology() != s.generation }

// topology returns the generation of KFD's topology, 0 if there is none.
func (s *Source) topology() uint64 {
	generation, err := s.reader.Number(sysfs.WorkingDir, filepath.Join(s.kfd(), "topology", "generation_id"))
	if err != nil {
		return 0
	}
	return generation
}

// adopt updates the known GPUs from the cards and KFD's nodes.
func (s *Source) adopt(cards []drmcard.Card) error {
	known := map[string]*gpu{}
	for _, g := range s.gpus {
		known[g.card.PCI] = g
	}
	s.gpus, s.nodes = nil, nil
	if !slices.ContainsFunc(cards, isGPU) {
		return nil
	}
	s.generation = s.topology()
	nodes, denied, err := s.list(s.kfd())
	s.nodes = nodes
	for _, card := range cards {
		if !isGPU(card) {
			continue
		}
		g := known[card.PCI]
		if g == nil {
			g = &gpu{now: func() time.Time { return s.now() }, open: s.open, parser: s.parser}
		}
		g.card, g.parts = card, partsOf(card, cards, nodes)
		g.unknown = denied && len(g.parts) == 0
		s.gpus = append(s.gpus, g)
	}
	return err
}

// isGPU reports whether a card belongs to AMD's driver amdgpu.
func isGPU(card drmcard.Card) bool { return card.Driver == "amdgpu" && card.PCI != "" }

// part is a GPU, or one of its partitions.
type part struct {
	node    drmcard.Node
	devices []string // below /dev
}

// partsOf returns the parts of a card, by KFD's nodes: several if it is partitioned, none if KFD
// does not know it. The first partition has the GPU's own DRM nodes. Others have those of a
// platform device, which may exist before it is used.
func partsOf(card drmcard.Card, cards []drmcard.Card, nodes []drmcard.Node) []part {
	const function = len(".0")
	var parts []part
	for _, n := range nodes {
		if n.Slot != card.PCI[:len(card.PCI)-function] {
			continue
		}
		owner := slices.IndexFunc(cards, func(c drmcard.Card) bool { return c.Render == n.Render })
		if owner >= 0 && isGPU(cards[owner]) && cards[owner].PCI != card.PCI {
			continue // another function of the same PCI device: a virtual GPU
		}
		p := part{node: n}
		if owner >= 0 {
			p.devices = cards[owner].DeviceNodes()
		}
		parts = append(parts, p)
	}
	return parts
}

// start starts a read of each GPU whose last read has returned, and of the processes.
func (s *Source) start() {
	now := s.now()
	idle := slices.DeleteFunc(slices.Clone(s.gpus), func(g *gpu) bool { return g.call != nil })
	due := sysfs.Due(idle, func(g *gpu) time.Time { return g.slowAt }, now, slowEvery, slowAtOnce)
	for _, g := range idle {
		card, parts, unknown, whole := g.card, g.parts, g.unknown, due[g]
		hardware := g.hardware()
		if whole {
			g.slowAt = now
		}
		g.call = driver.Go(
			func() outcome { return g.read(card, hardware, parts, unknown, whole) },
			func(err error) outcome { return unreadable(hardware, err) },
		)
	}
	if s.usage == nil {
		nodes := slices.Clone(s.nodes)
		s.usage = driver.Go(func() usage {
			at := s.now()
			uses, err := s.using.read(nodes)
			return usage{uses, at, err}
		}, func(err error) usage { return usage{err: err} })
	}
}

// collect returns the results of the reads.
func (s *Source) collect(bad *sysfs.Problems) []driver.Sample {
	u, done := s.usage.Take()
	if done {
		s.usage = nil
	} else {
		u.err = driver.Hung("read the processes of KFD")
	}
	bad.Add(u.err)
	var samples []driver.Sample
	for _, g := range s.gpus {
		o, done := g.call.Take()
		switch {
		case !done:
			bad.Add(fmt.Errorf("read GPU %s: %w", g.card.PCI, driver.Hung("read sysfs")))
			samples = append(samples, driver.Sample{Hardware: g.hardware(), Unreadable: true})
			continue
		case o.err != nil:
			bad.Add(fmt.Errorf("read GPU %s: %w", g.card.PCI, o.err))
		}
		g.call = nil
		if u.uses != nil {
			first := len(o.samples) - len(o.nodes)
			for i, n := range o.nodes {
				sample := &o.samples[first+i]
				addProcesses(sample, u.uses[n.ID], len(o.nodes) > 1, u.at)
				addCopying(sample, u.uses[n.ID], n.Engines, u.at)
			}
		}
		samples = append(samples, o.samples...)
	}
	return samples
}
