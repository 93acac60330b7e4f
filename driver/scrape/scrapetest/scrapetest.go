// Package scrapetest simulates vendors' exporters, for tests and the demo.
package scrapetest

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"
)

// DCGM serves an exposition like that of dcgm-exporter: some of its default fields and profiling
// fields, with the values of Read, which are updated every Refresh.
type DCGM struct {
	// Read returns the state of the GPUs at a time. It is called for each request, with the time of
	// the last refresh.
	Read func(at time.Time) []GPU
	// Refresh is the collect interval, -c of dcgm-exporter; 0: for each request. Refreshes happen
	// at its multiples.
	Refresh time.Duration
	// Now is the clock; nil: [time.Now].
	Now func() time.Time
}

// GPU is the state of one GPU. Values that are NaN are not exported.
type GPU struct {
	UUID        string  // GPU-…
	PCI         string  // as DCGM prints it: 00000000:3B:00.0
	Model       string  // product name
	Utilization float64 // share of time, 0 to 1
	Power       float64 // watts
	Energy      float64 // joules since the driver was loaded
	MemoryUsed  float64 // bytes
	MemoryTotal float64 // bytes
	Temperature float64 // celsius
	Instances   []Instance
}

// Instance is one MIG instance of a GPU.
type Instance struct {
	ID          int
	Profile     string  // 1g.10gb
	Utilization float64 // share of time, 0 to 1
	MemoryUsed  float64 // bytes
	MemoryTotal float64 // bytes
}

// ServeHTTP responds to every request with the exposition.
func (d *DCGM) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	now := time.Now
	if d.Now != nil {
		now = d.Now
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(Exposition(d.Read(now().Truncate(d.Refresh)))) //nolint:errcheck // the client has gone
}

// family is one DCGM field. instance returns NaN for fields that exist only for whole GPUs.
type family struct {
	name, kind, help string
	gpu              func(GPU) float64
	instance         func(Instance) float64
}

const mebibyte = 1 << 20

func families() []family {
	none := func(Instance) float64 { return math.NaN() }
	notWithMIG := func(of func(GPU) float64) func(GPU) float64 {
		return func(g GPU) float64 {
			if len(g.Instances) > 0 {
				return math.NaN()
			}
			return of(g)
		}
	}
	return []family{
		{
			"DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).",
			func(g GPU) float64 { return math.Round(g.Temperature) }, none,
		},
		{"DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", func(g GPU) float64 { return g.Power }, none},
		{
			"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ).",
			func(g GPU) float64 { return math.Floor(g.Energy * 1000) }, none,
		},
		{
			"DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).",
			notWithMIG(func(g GPU) float64 { return math.Round(g.Utilization * 100) }), none,
		},
		{
			"DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB).",
			func(g GPU) float64 { return math.Floor(g.MemoryUsed / mebibyte) },
			func(i Instance) float64 { return math.Floor(i.MemoryUsed / mebibyte) },
		},
		{
			"DCGM_FI_DEV_FB_TOTAL", "gauge", "Framebuffer memory (in MiB).",
			func(g GPU) float64 { return math.Floor(g.MemoryTotal / mebibyte) },
			func(i Instance) float64 { return math.Floor(i.MemoryTotal / mebibyte) },
		},
		{
			"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active.",
			func(g GPU) float64 { return g.Utilization }, func(i Instance) float64 { return i.Utilization },
		},
	}
}

// Exposition returns the text exposition of the GPUs. Like that of dcgm-exporter by default, it has
// no series of a GPU with MIG instances, and repeats the GPU's values in the series of its
// instances.
func Exposition(gpus []GPU) []byte {
	var b bytes.Buffer
	for _, f := range families() {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", f.name, f.help, f.name, f.kind)
		for i, g := range gpus {
			labels := fmt.Sprintf("gpu=%q,UUID=%q,pci_bus_id=%q,device=\"nvidia%d\",modelName=%q", strconv.Itoa(i), g.UUID,
				g.PCI, i, g.Model)
			if len(g.Instances) == 0 {
				write(&b, f.name, labels, f.gpu(g))
			}
			for _, in := range g.Instances {
				part := fmt.Sprintf("%s,GPU_I_PROFILE=%q,GPU_I_ID=%q", labels, in.Profile, strconv.Itoa(in.ID))
				v := f.instance(in)
				if math.IsNaN(v) {
					v = f.gpu(g)
				}
				write(&b, f.name, part, v)
			}
		}
	}
	return b.Bytes()
}

func write(b *bytes.Buffer, name, labels string, v float64) {
	if !math.IsNaN(v) {
		fmt.Fprintf(b, "%s{%s,Hostname=\"node\"} %s\n", name, labels, strconv.FormatFloat(v, 'f', -1, 64))
	}
}
