//go:build cgo

package nvml

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
)

// account is the driver's accounting of a process since its start.
type account struct {
	start   uint64 // start time of the process, in NVML's microseconds
	samples uint32
	sum     uint64           // of the samples
	busy    []driver.Reading // mean between the last two reads; none before the second
}

// accountedProcesses reads the utilization of processes from the driver's accounting, if accounting
// mode is on (nvidia-smi -am 1) and there is no finer source. nvmlAccountingStats_v2_t has the
// number of samples and their sum, "GR engine utilization in unit of pct * 100": hundredths of a
// percent. The mean between two reads is the increase of the sum divided by that of the number.
func (r *reader) accountedProcesses(device nvml.Device) {
	const function = "nvmlDeviceGetAccountingStats_v2"
	g := r.gpu
	known := map[int]account{}
	for i := range r.running {
		p := &r.running[i]
		if !r.ask(function) {
			break
		}
		stats, answer := device.GetAccountingStats_v2(uint32(p.PID))
		if !r.took(function, answer) {
			continue
		}
		a := g.accounts[p.PID].next(stats, driver.Reading{Quantity: driver.Utilization, At: g.now()})
		known[p.PID] = a
		p.Readings = append(p.Readings, slices.Clone(a.busy)...)
	}
	g.accounts = known
}

// next returns the account after another read. Without a new sample, the reading stays the same. A
// different start time means another process with the same PID.
func (a account) next(stats nvml.AccountingStats_v2, reading driver.Reading) account {
	next := account{start: stats.StartTime, samples: stats.SampleCount, sum: stats.SumGpuUtil}
	switch {
	case a.start != next.start || next.samples < a.samples || next.sum < a.sum:
		return next
	case next.samples == a.samples:
		next.busy = a.busy
		return next
	}
	reading.Value = float64(next.sum-a.sum) / float64(next.samples-a.samples) / 100 * percent
	next.busy = []driver.Reading{reading}
	return next
}
