//go:build cgo

package nvml

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
)

// account is what the driver's accounting says of a process since it began.
type account struct {
	start   uint64 // of the process, in NVML's microseconds
	samples uint32
	sum     uint64           // over the samples
	busy    []driver.Reading // of the time between two looks; none before the second
}

// accountedProcesses reads the processes' share of the GPU's time from the driver's accounting,
// where that is on (nvidia-smi -am 1) and nothing finer tells it: nvmlAccountingStats_v2_t has the
// sum, over so many samples, of the "GR engine utilization in unit of pct * 100", which are
// hundredths of a percent. Between two looks its mean is what was added by what was.
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

// next returns the account after another look. While there is no new sample the share is what it
// was. A process that began at another time is another one.
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
