package sim

import "time"

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
