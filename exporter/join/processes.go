package join

import (
	"cmp"
	"math"
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// maxProcesses is the largest number of processes of a device that are considered.
const maxProcesses = 1 << 12

// Use is a holder's part of a device's quantities, from 0 to 1, by their basis.
type Use [driver.NumBases]float64

// Evenly returns the use of a holder with the same part of all quantities.
func Evenly(part float64) Use {
	var u Use
	for i := range u {
		u[i] = part
	}
	return u
}

// Add adds another use.
func (u *Use) Add(other Use) {
	for i := range u {
		u[i] += other[i]
	}
}

// slot is one pod's part of one share.
type slot struct {
	share, pod int
	weight     float64 // its part if the use of processes is unknown
	used       Use     // in the units of the readings
}

// divideByProcess sets the part of the device that each pod's processes used, and so each share's.
// It changes nothing if there is nothing to divide, if a holder's UID is unknown, or if no process
// belongs to a holder.
//
// Among claims, the use of processes without a holder is unattributed, and so is the device's use
// beyond the sum of its processes. Parts that sum to more than the device's use are scaled down. A
// claim that holds the device alone has all of it; its pods divide it in proportion to their
// processes' use.
func (j *joiner) divideByProcess(d *Device, processes []driver.Process) {
	if len(processes) == 0 {
		return
	}
	slots, of := slotsOf(d.Shares)
	if len(slots) < 2 || of == nil {
		return
	}
	all, known, sampled, matched := j.tally(slots, of, processes)
	if !matched {
		return
	}
	whole := d.whole(j.catalogue, all)
	if d.Attribution == AttributionExclusive {
		whole = Use{}
		for i := range slots {
			whole.Add(slots[i].used)
		}
	} else if known[driver.ByTime] {
		d.Attribution = AttributionProcess
	}
	d.Shares = slices.Clone(d.Shares) // other results share them
	for i := range d.Shares {
		if s := &d.Shares[i]; !s.Admin {
			s.Uses, s.ByProcess = make([]Use, len(s.Pods)), known[driver.ByTime]
			s.Sampled = sampled
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

// tally sums the use of the processes: in total, and by slot. known are the bases that any process
// reports. sampled: their utilization is an estimate. matched: a process belongs to a slot.
func (j *joiner) tally(
	slots []slot, of map[string][]int, processes []driver.Process,
) (all Use, known [driver.NumBases]bool, sampled, matched bool) {
	for _, p := range inOrder(processes[:min(len(processes), maxProcesses)]) {
		amount, has := j.amounts(p)
		all.Add(amount)
		sampled = sampled || slices.ContainsFunc(p.Readings,
			func(r driver.Reading) bool { return r.Quantity == driver.Utilization && r.Estimated })
		for i := range has {
			known[i] = known[i] || has[i]
		}
		own := of[j.podOf[p.PID]]
		matched = matched || len(own) > 0
		share(slots, own, amount)
	}
	return all, known, sampled, matched
}

// mergeProcesses adds the processes of a source to those of earlier sources. For each quantity of a
// process, the first source that has it counts: amdgpu knows the compute through KFD, and drm the
// rest.
func mergeProcesses(processes, more []driver.Process) []driver.Process {
	if len(processes) == 0 {
		return more
	}
	if len(more) == 0 {
		return processes
	}
	merged, at := slices.Clone(processes), make(map[int]int, len(processes))
	for i, p := range merged {
		at[p.PID] = i
	}
	for _, p := range more {
		i, known := at[p.PID]
		if !known {
			merged = append(merged, p)
			continue
		}
		readings := slices.Clone(merged[i].Readings)
		for _, r := range p.Readings {
			if !slices.ContainsFunc(merged[i].Readings, func(own driver.Reading) bool { return own.Quantity == r.Quantity }) {
				readings = append(readings, r)
			}
		}
		merged[i].Readings = readings
	}
	return merged
}

// inOrder returns the processes sorted by PID, each once.
func inOrder(processes []driver.Process) []driver.Process {
	ascend := func(a, b driver.Process) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), slices.CompareFunc(a.Readings, b.Readings, compareValues))
	}
	if !slices.IsSortedFunc(processes, ascend) {
		processes = slices.SortedFunc(slices.Values(processes), ascend)
	}
	return slices.CompactFunc(slices.Clone(processes), func(a, b driver.Process) bool { return a.PID == b.PID })
}

// slotsOf returns a slot for each pod of each share, and the slots by the pod's UID; of is nil if a
// UID is unknown. If a pod holds the device through several shares, its use is divided among them
// in proportion to their weights.
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

// findPod adds a slot to those of a pod's UIDs. It returns false if a UID is unknown.
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

// amounts returns the use of a process, and which parts of it are known.
func (j *joiner) amounts(p driver.Process) (amount Use, known [driver.NumBases]bool) {
	for _, r := range p.Readings {
		if reason := RejectReading(j.catalogue, &r, driver.KindPartition); reason != "" { // a process may use nothing
			j.rejectValue("processes", reason, &r)
			continue
		}
		spec := j.catalogue.Spec(r.Quantity)
		if !spec.MeasuresBasis {
			continue
		}
		amount[spec.Basis], known[spec.Basis] = r.Value, true
		if spec.Basis == driver.ByTime {
			amount[driver.ByWork], known[driver.ByWork] = r.Value, true
		}
	}
	return amount, known
}

// share divides an amount among slots in proportion to their weights.
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

// whole returns the device's own readings, or the sum of the processes if that is higher, by basis.
func (d *Device) whole(catalogue driver.Catalogue, all Use) Use {
	for i := range d.Readings {
		r := &d.Readings[i]
		if spec := catalogue.Spec(r.Quantity); spec.MeasuresBasis {
			all[spec.Basis] = math.Max(all[spec.Basis], r.Value)
		}
	}
	return all
}

// PodUse returns the part of the pod at position n of the share's pods.
func (s *Share) PodUse(n int) Use {
	if s.Own != nil {
		use := s.Own.Use
		for b := range use {
			use[b] /= float64(len(s.Pods))
		}
		return use
	}
	if s.Uses == nil {
		return Evenly(s.Weight / float64(len(s.Pods)))
	}
	return s.Uses[n]
}
