package exporter

import (
	"cmp"
	"math"
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// basis is that by which a quantity is divided among holders whose processes' use is known.
type basis uint8

const (
	byTime   basis = iota // the busy time itself: what a process has of it
	byMemory              // the memory that a process has
	byWork                // what work causes, such as power and traffic: in proportion to the processes' busy time
	numBases = iota
)

// maxProcesses bounds the processes of a device that are looked at.
const maxProcesses = 1 << 12

func basisOf(q driver.Quantity) basis {
	switch q {
	case driver.Utilization, driver.ActiveSeconds:
		return byTime
	case driver.MemoryUsed:
		return byMemory
	default:
		return byWork
	}
}

// Use is a holder's part of a device's quantities, by their basis, each from 0 to 1.
type Use [numBases]float64

// evenly is the use of one whose part is the same of everything.
func evenly(part float64) Use {
	var u Use
	for i := range u {
		u[i] = part
	}
	return u
}

func (u *Use) add(other Use) {
	for i := range u {
		u[i] += other[i]
	}
}

// slot is one pod's part in one share.
type slot struct {
	share, pod int
	weight     float64 // its part where no process tells
	used       Use     // in the units of the processes' readings
}

// divideByProcess says what part of the device each pod's processes used, and through them each share. It changes nothing
// where there is nothing to divide, where a holder's UID is unknown, or where no process is a holder's: the parts are those
// of divide then.
//
// Of what is divided among claims, the use of processes that are no holder's is nobody's, and so is what the device has above
// the sum of its processes' use; parts that sum to more than the device has are scaled down. What one claim has alone is its own,
// and its pods' processes say in which proportion.
func (j *joiner) divideByProcess(d *JoinedDevice, processes []driver.Process) {
	slots, of := slotsOf(d.Shares)
	if len(slots) < 2 || of == nil {
		return
	}
	all, known, matched := j.tally(slots, of, processes)
	if !matched {
		return
	}
	whole := d.whole(all)
	if d.Attribution == AttributionExclusive {
		whole = Use{}
		for i := range slots {
			whole.add(slots[i].used)
		}
	} else if known[byTime] {
		d.Attribution = AttributionProcess
	}
	for i := range d.Shares {
		if s := &d.Shares[i]; !s.Admin {
			s.Uses, s.ByProcess = make([]Use, len(s.Pods)), known[byTime]
		}
	}
	for _, slot := range slots {
		for b := range whole {
			part := slot.weight
			if known[b] && whole[b] > 0 {
				part = slot.used[b] / whole[b]
			}
			d.Shares[slot.share].Uses[slot.pod][b] = part
		}
	}
}

// tally sums what the processes use, in all and by slot. It tells what is known of any process, and whether one is a slot's.
func (j *joiner) tally(slots []slot, of map[string][]int, processes []driver.Process) (all Use, known [numBases]bool, matched bool) {
	for _, p := range inOrder(processes[:min(len(processes), maxProcesses)]) {
		amount, has := j.amounts(p)
		all.add(amount)
		for i := range has {
			known[i] = known[i] || has[i]
		}
		own := of[j.podOf[p.PID]]
		matched = matched || len(own) > 0
		share(slots, own, amount)
	}
	return all, known, matched
}

// inOrder returns the processes by their PIDs, each once.
func inOrder(processes []driver.Process) []driver.Process {
	ascend := func(a, b driver.Process) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), slices.CompareFunc(a.Readings, b.Readings, compareValues))
	}
	if !slices.IsSortedFunc(processes, ascend) {
		processes = slices.SortedFunc(slices.Values(processes), ascend)
	}
	return slices.CompactFunc(slices.Clone(processes), func(a, b driver.Process) bool { return a.PID == b.PID })
}

// slotsOf lists the pods of the shares, and finds those of a pod's UID; nil where a UID is unknown. Of a pod that holds the
// device through several shares, each has the part of the pod's use that it has of the pod's weight.
func slotsOf(shares []Share) (slots []slot, of map[string][]int) {
	of = map[string][]int{}
	for i := range shares {
		s := &shares[i]
		if s.Admin {
			continue
		}
		for n, pod := range s.Pods {
			slots = append(slots, slot{share: i, pod: n, weight: s.Weight / float64(len(s.Pods))})
			if !findPod(of, s.Holders, pod, len(slots)-1) {
				return slots, nil
			}
		}
	}
	return slots, of
}

// findPod notes the slot under the UIDs of the pod's holders, and returns false where one is unknown.
func findPod(of map[string][]int, holders []podresources.Holder, pod podresources.Pod, slot int) bool {
	for i := range holders {
		h := &holders[i]
		if h.Pod != pod {
			continue
		}
		if h.UID == "" {
			return false
		}
		if !slices.Contains(of[h.UID], slot) {
			of[h.UID] = append(of[h.UID], slot)
		}
	}
	return true
}

// amounts returns what a process uses, and what of it is known.
func (j *joiner) amounts(p driver.Process) (amount Use, known [numBases]bool) {
	for _, r := range p.Readings {
		if j.catalogue.unusable(&r) != "" {
			continue
		}
		switch r.Quantity {
		case driver.Utilization:
			amount[byTime], amount[byWork] = r.Value, r.Value
			known[byTime], known[byWork] = true, true
		case driver.MemoryUsed:
			amount[byMemory], known[byMemory] = r.Value, true
		default:
		}
	}
	return amount, known
}

// share divides an amount among slots by their weights.
func share(slots []slot, own []int, amount Use) {
	total := 0.0
	for _, i := range own {
		total += slots[i].weight
	}
	for _, i := range own {
		part := 1 / float64(len(own))
		if total > 0 {
			part = slots[i].weight / total
		}
		for b := range amount {
			slots[i].used[b] += amount[b] * part
		}
	}
}

// whole is what the parts are parts of: the device's own readings, or the processes' sum, if that is more.
func (d *JoinedDevice) whole(all Use) Use {
	for i := range d.Readings {
		switch r := &d.Readings[i]; r.Quantity {
		case driver.Utilization:
			all[byTime] = math.Max(all[byTime], r.Value)
		case driver.MemoryUsed:
			all[byMemory] = math.Max(all[byMemory], r.Value)
		default:
		}
	}
	return all
}

// use returns the part of the pod at position n of the share's pods.
func (s *Share) use(n int) Use {
	if s.Uses == nil {
		return evenly(s.Weight / float64(len(s.Pods)))
	}
	return s.Uses[n]
}
