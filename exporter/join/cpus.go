package join

import (
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Own is a share's part of a device that is a group of CPUs, of which each claim has its own.
type Own struct {
	Part float64 // of the device's CPUs; a CPU of several shares counts in equal parts
	Use  Use     // the part of all CPUs' work that these CPUs do
	// Unknown reports that the driver has prepared the claim, but its CPUs are unknown: the claim may
	// be active whenever the device is.
	Unknown bool
}

// cutCPUs removes CPUs that the device does not have from the shares: a claim for devices of
// several NUMA nodes has the CPUs of all of them.
func cutCPUs(shares []Share, of []int) {
	for i := range shares {
		s := &shares[i]
		var cpus []int
		for _, cpu := range s.CPUs {
			if _, has := slices.BinarySearch(of, cpu); has {
				cpus = append(cpus, cpu)
			}
		}
		s.CPUs = cpus
	}
}

// hasOwnCPUs reports whether claims have CPUs of their own in the device, known or not.
func (d *Device) hasOwnCPUs() bool {
	return slices.ContainsFunc(d.Shares, func(s Share) bool { return !s.Admin && s.OwnCPUs })
}

// keepBusy records the utilization of a CPU. The first source that reports one counts.
func (f *deviceFacts) keepBusy(d *Device, cpu int, utilization float64) {
	if !d.hasOwnCPUs() {
		return
	}
	if f.busy == nil {
		f.busy = make(map[int]float64, len(d.Entry.CPUs))
	}
	if _, known := f.busy[cpu]; !known {
		f.busy[cpu] = utilization
	}
}

// byCPUs sets the weights by the number of CPUs of each share. If a share has none, it changes
// nothing and returns false.
func byCPUs(shares []Share) bool {
	all := 0
	for i := range shares {
		if s := &shares[i]; !s.Admin {
			if len(s.CPUs) == 0 {
				return false
			}
			all += len(s.CPUs)
		}
	}
	if all == 0 {
		return false
	}
	for i := range shares {
		if s := &shares[i]; !s.Admin {
			s.Weight = float64(len(s.CPUs)) / float64(all)
		}
	}
	return true
}

// divideByCPUs computes what each share's own CPUs do. It returns false if claims have no CPUs of
// their own. The work of other CPUs is unattributed. Shares whose CPUs are unknown, or not prepared
// yet, have none of it. If the utilization of a CPU is unknown, all CPUs are taken to be equally
// busy.
func divideByCPUs(d *Device, busy map[int]float64) bool {
	if !d.hasOwnCPUs() {
		return false
	}
	d.Shares = slices.Clone(d.Shares) // other results share them
	owners := map[int]int{}
	for i := range d.Shares {
		if s := &d.Shares[i]; !s.Admin {
			for _, cpu := range s.CPUs {
				owners[cpu]++
			}
		}
	}
	all := 0.0
	if len(busy) == len(d.Entry.CPUs) {
		for _, utilization := range busy {
			all += utilization
		}
	}
	for i := range d.Shares {
		s := &d.Shares[i]
		if s.Admin {
			continue
		}
		if len(s.CPUs) == 0 {
			s.Own = &Own{Unknown: s.State == podresources.StatePrepared}
			continue
		}
		part, used := 0.0, 0.0
		for _, cpu := range s.CPUs {
			part += 1 / float64(owners[cpu])
			used += busy[cpu] / float64(owners[cpu])
		}
		s.Own = &Own{Part: part / float64(len(d.Entry.CPUs))}
		s.Own.Use = Evenly(s.Own.Part)
		if all > 0 {
			s.Own.Use[driver.ByTime], s.Own.Use[driver.ByWork] = used/all, used/all
		}
	}
	d.Attribution = AttributionCPUs
	return true
}
