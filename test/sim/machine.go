// Package sim simulates a machine with devices, for which the true use of each workload is known
// exactly. Its [Source] reads the machine like a vendor's library reads real devices. The demo and
// tests link it; the shipped program does not.
//
// All values of a device follow from its load, which is piecewise linear over time. Every value and
// every integral can be computed for any time, so that the truth does not depend on the times of
// readings.
package sim

import (
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"
)

// Workload is a user of a device.
type Workload struct {
	Name string // identifies the truth; each name holds a device at most once at a time
	// Group and Weight divide a device that several workloads hold at the same time. Each group has a
	// part by the weight of its workloads, which is the same for all of them, and they share that part
	// equally. A workload with an empty Group is its own group. Weight 0 owns nothing and has no load,
	// like admin access.
	Group  string
	Weight float64

	MemoryBytes float64 // resident while it holds the device
	Spike       Spike   // in addition to MemoryBytes
	Load        Profile // load of its part of the device, from the time at which it begins to hold it
}

// Spike is memory that a workload uses for short times, such as for checkpoints: for Length, every
// Every, beginning First after it began to hold the device. The zero Spike is none.
type Spike struct {
	First, Every, Length time.Duration
	Bytes                float64
}

// bytes returns the memory at a time since the workload began to hold the device.
func (s Spike) bytes(at time.Duration) float64 {
	if s.Every <= 0 || at < s.First || (at-s.First)%s.Every >= s.Length {
		return 0
	}
	return s.Bytes
}

// Machine is a set of devices. It is safe for concurrent use.
type Machine struct {
	start time.Time

	mu      sync.RWMutex
	devices []*state
	byName  map[string]*state
}

// New returns a machine that has been idle since start. Devices must have distinct names, and
// parents must precede their parts. seed determines the initial values of hardware counters.
func New(start time.Time, seed uint64, devices ...Device) *Machine {
	m := &Machine{start: start, byName: map[string]*state{}}
	for i, d := range devices {
		s := &state{Device: withCounters(d, seed+uint64(i)), epochs: []epoch{{start: start}}, accounts: map[string]*account{}}
		if s.parent = m.byName[d.Parent]; s.parent != nil {
			s.parent.parts = append(s.parent.parts, s)
		}
		m.devices, m.byName[d.Name] = append(m.devices, s), s
	}
	return m
}

// Devices returns the devices, in the order given.
func (m *Machine) Devices() []Device {
	out := make([]Device, len(m.devices))
	for i, s := range m.devices {
		out[i] = s.Device
	}
	return out
}

// XIDs returns the number of errors with the code XID of a device between two times, including the
// second.
func (m *Machine) XIDs(device string, from, to time.Time) int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	s := m.byName[device]
	until := func(t time.Time) int { return int(max(0, t.Sub(m.start)) / s.XIDEvery) }
	return until(to) - until(from)
}

// Begin adds a workload to the holders of a device at a time.
func (m *Machine) Begin(device string, w Workload, at time.Time) error {
	return m.change(device, w.Name, false, at, func(holds []hold, _ int) []hold {
		return append(holds, hold{Workload: w, since: at})
	})
}

// End removes a workload from the holders of a device at a time.
func (m *Machine) End(device, workload string, at time.Time) error {
	return m.change(device, workload, true, at, func(holds []hold, i int) []hold { return slices.Delete(holds, i, i+1) })
}

// SetLoad changes the load of a workload from a time on. The workload continues to hold the device.
func (m *Machine) SetLoad(device, workload string, load Profile, at time.Time) error {
	return m.change(device, workload, true, at, func(holds []hold, i int) []hold {
		holds[i].Load, holds[i].since = load, at
		return holds
	})
}

// change begins a new epoch of the device with the holds that edit returns. edit gets a copy of the
// present holds, and the index of the workload in it. There must be one if it holds the device,
// else none.
func (m *Machine) change(device, workload string, holding bool, at time.Time, edit func([]hold, int) []hold) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.byName[device]
	last := s.epochs[len(s.epochs)-1]
	i := slices.IndexFunc(last.holds, func(h hold) bool { return h.Name == workload })
	if holding != (i >= 0) {
		return fmt.Errorf("%s holds %s: %v, want %v", workload, device, i >= 0, holding)
	}
	s.settle(at)
	s.epochs = append(s.epochs, epoch{
		start: at, busy: last.busyAt(at), spun: last.spunAt(at), holds: divide(edit(slices.Clone(last.holds), i)),
	})
	return nil
}

// state is a device with its history.
type state struct {
	Device
	parent   *state // of a part
	parts    []*state
	epochs   []epoch // oldest first; in each the holders are the same
	accounts map[string]*account
	total    account // of all holders with a weight
}

// epochAt returns the epoch that contains a time, or the oldest one for earlier times.
func (s *state) epochAt(at time.Time) epoch {
	after := sort.Search(len(s.epochs), func(i int) bool { return s.epochs[i].start.After(at) })
	return s.epochs[max(0, after-1)]
}

// load returns the device's load at a moment; that of a partitioned device is the mean of its
// parts.
func (s *state) load(at time.Time) float64 { return s.mean(at, epoch.loadAt) }

// spin returns the part of the device that spins at a time.
func (s *state) spin(at time.Time) float64 { return s.mean(at, epoch.spinAt) }

// busy returns the integral of the load, in seconds, since the machine's start.
func (s *state) busy(at time.Time) float64 { return s.mean(at, epoch.busyAt) }

// spun returns the seconds since the machine's start for which the device spun.
func (s *state) spun(at time.Time) float64 { return s.mean(at, epoch.spunAt) }

// mean returns a value of the epoch at a moment. For a partitioned device, it is the mean over its
// parts.
func (s *state) mean(at time.Time, of func(epoch, time.Time) float64) float64 {
	if len(s.parts) == 0 {
		return of(s.epochAt(at), at)
	}
	sum := 0.0
	for _, part := range s.parts {
		sum += part.mean(at, of)
	}
	return sum / float64(len(s.parts))
}

// memory returns the bytes in use at a moment, at most the capacity.
func (s *state) memory(at time.Time) float64 {
	sum := s.ReservedBytes
	for _, h := range s.epochAt(at).holds {
		sum += h.MemoryBytes + h.Spike.bytes(at.Sub(h.since))
	}
	return min(sum, s.MemoryBytes)
}

// epoch is a time in which the holders of a device do not change.
type epoch struct {
	start time.Time
	busy  float64 // the integral of the load from the machine's start until then, in seconds
	spun  float64 // seconds for which it spun from the machine's start until then
	holds []hold
}

func (e epoch) loadAt(at time.Time) float64 {
	sum := 0.0
	for _, h := range e.holds {
		sum += h.share * h.Load.Level(at.Sub(h.since))
	}
	return min(sum, 1) // shares sum to 1 except for rounding
}

func (e epoch) spinAt(at time.Time) float64 {
	sum := 0.0
	for _, h := range e.holds {
		if h.Load.Spins(at.Sub(h.since)) {
			sum += h.share
		}
	}
	return min(sum, 1)
}

func (e epoch) busyAt(at time.Time) float64 {
	sum := e.busy
	for _, h := range e.holds {
		sum += h.share * h.busy(e.start, at)
	}
	return sum
}

func (e epoch) spunAt(at time.Time) float64 {
	sum := e.spun
	for _, h := range e.holds {
		sum += h.share * (h.Load.Spun(at.Sub(h.since)) - h.Load.Spun(e.start.Sub(h.since)))
	}
	return sum
}

// hold is a workload that has a device.
type hold struct {
	Workload
	since time.Time // when its load began
	share float64   // its part of the device
}

// busy returns the integral of the workload's own load.
func (h hold) busy(from, to time.Time) float64 {
	return h.Load.Integral(to.Sub(h.since)) - h.Load.Integral(from.Sub(h.since))
}

// divide sets the shares of the holds, by the weights of their groups.
func divide(holds []hold) []hold {
	size, weight, sum := map[string]int{}, map[string]float64{}, 0.0
	group := func(h hold) string {
		if h.Group == "" {
			return "workload " + h.Name
		}
		return "group " + h.Group
	}
	for _, h := range holds {
		g := group(h)
		size[g]++
		if size[g] == 1 {
			weight[g] = h.Weight
			sum += h.Weight
		}
	}
	for i, h := range holds {
		holds[i].share = 0
		if g := group(h); weight[g] > 0 {
			holds[i].share = weight[g] / sum / float64(size[g])
		}
	}
	return holds
}

// Truth is the true use. Quantities that the device does not measure are zero, except the energy of
// holders of a partition, which is a part of the parent's energy.
type Truth struct {
	HeldSeconds   float64 // time in which the device was held
	ShareSeconds  float64 // the same, divided among concurrent holders
	ActiveSeconds float64
	Joules        float64 // including the idle energy of the device or partition while it was held
	ReceiveBytes  float64
	TransmitBytes float64
}

// Plus returns the sum of both.
func (t Truth) Plus(other Truth) Truth {
	return Truth{
		HeldSeconds:   t.HeldSeconds + other.HeldSeconds,
		ShareSeconds:  t.ShareSeconds + other.ShareSeconds,
		ActiveSeconds: t.ActiveSeconds + other.ActiveSeconds,
		Joules:        t.Joules + other.Joules,
		ReceiveBytes:  t.ReceiveBytes + other.ReceiveBytes,
		TransmitBytes: t.TransmitBytes + other.TransmitBytes,
	}
}

// TruthOn returns the use of a device by a workload until a time, which must not precede the last
// change of the device. Concurrent holders are charged their parts by weight. The parts and the use
// while the device was not held sum to [Machine.Total].
func (m *Machine) TruthOn(device, workload string, at time.Time) Truth {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.byName[device].truth(workload, at)
}

// Total returns the use of a device from the machine's start until a time, held or not. Its held
// and share seconds are the time in which any workload with a weight held it.
func (m *Machine) Total(device string, at time.Time) Truth {
	m.mu.RLock()
	defer m.mu.RUnlock()
	s := m.byName[device]
	total := s.total
	last := s.epochs[len(s.epochs)-1]
	total.add(last.whole(at))
	total.active, total.spun = s.busy(at), s.spun(at)
	out := s.valuate(total)
	out.Joules = 0 // of a partition: it is in its parent's
	if s.MaxWatts > 0 {
		out.Joules = s.joules(at.Sub(m.start).Seconds(), total.active, total.spun)
	}
	return out
}

// Forget removes the truth of a workload that holds no device any more.
func (m *Machine) Forget(workload string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.devices {
		delete(s.accounts, workload)
	}
}

// account has the sums, in seconds, from which the use of a device by a workload is computed.
type account struct {
	held   float64
	share  float64 // the integral of its share of the device
	active float64 // the integral of its share of the device's load
	spun   float64 // its share of the time in which the device spun
}

func (a *account) add(other account) {
	a.held += other.held
	a.share += other.share
	a.active += other.active
	a.spun += other.spun
}

// account returns what the hold adds in the epoch until at.
func (e epoch) account(h hold, at time.Time) account {
	elapsed := max(0, at.Sub(e.start).Seconds())
	return account{
		held: elapsed, share: h.share * elapsed,
		active: h.share * (e.busyAt(at) - e.busy), spun: h.share * (e.spunAt(at) - e.spun),
	}
}

// whole returns what all holds with a weight add in the epoch until at, but for the activity.
func (e epoch) whole(at time.Time) account {
	for _, h := range e.holds {
		if h.share > 0 {
			elapsed := max(0, at.Sub(e.start).Seconds())
			return account{held: elapsed, share: elapsed}
		}
	}
	return account{}
}

// settle adds the last epoch, which ends at that time, to the accounts.
func (s *state) settle(at time.Time) {
	last := s.epochs[len(s.epochs)-1]
	for _, h := range last.holds {
		a, ok := s.accounts[h.Name]
		if !ok {
			a = &account{}
			s.accounts[h.Name] = a
		}
		a.add(last.account(h, at))
	}
	s.total.add(last.whole(at))
}

func (s *state) truth(workload string, at time.Time) Truth {
	var sum account
	if a, ok := s.accounts[workload]; ok {
		sum = *a
	}
	last := s.epochs[len(s.epochs)-1]
	for _, h := range last.holds {
		if h.Name == workload {
			sum.add(last.account(h, at))
		}
	}
	return s.valuate(sum)
}

// valuate returns the use that corresponds to an account on this device.
func (s *state) valuate(a account) Truth {
	t := Truth{
		HeldSeconds:   a.held,
		ShareSeconds:  a.share,
		ReceiveBytes:  s.ReceiveRate * a.active,
		TransmitBytes: s.TransmitRate * a.active,
	}
	if s.Compute {
		t.ActiveSeconds = a.active + a.spun
	}
	switch {
	case s.MaxWatts > 0:
		t.Joules = s.joules(a.share, a.active, a.spun)
	case s.parent != nil: // whose load is the mean of its parts
		t.Joules = s.parent.joules(a.share, a.active, a.spun) / float64(len(s.parent.parts))
	}
	return t
}
