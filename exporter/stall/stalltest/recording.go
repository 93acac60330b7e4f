package stalltest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"
	"time"
)

// Recording is a workload of some seconds that was recorded on a real device.
type Recording struct {
	Workload string
	Model    Model
	// Idle is a second of the same device without a process.
	Idle Values
	// Seconds have for counters what the second added. What was not recorded is NaN.
	Seconds []Values
}

// Recordings returns the recorded workloads of the JSON files of a folder: those of testdata.
func Recordings(folder fs.FS) ([]Recording, error) {
	names, err := fs.Glob(folder, "*.json")
	if err != nil {
		return nil, err
	}
	var all []Recording
	for _, name := range names {
		content, err := fs.ReadFile(folder, name)
		if err != nil {
			return nil, err
		}
		some, err := ParseRecordings(bytes.NewReader(content))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// recordedFile is the content of a file of recordings. A second has numbers, and host_state.
type recordedFile struct {
	Device   string
	Segments []struct {
		Workload string
		Seconds  []map[string]any
	}
}

// ParseRecordings reads recorded workloads in the shape of testdata.
func ParseRecordings(r io.Reader) ([]Recording, error) {
	var file recordedFile
	if err := json.NewDecoder(r).Decode(&file); err != nil {
		return nil, err
	}
	var model Model
	switch file.Device {
	case H100().Name:
		model = H100()
	case H200().Name:
		model = H200()
	default:
		return nil, fmt.Errorf("no model of device %q", file.Device)
	}
	var (
		out  []Recording
		idle Values
		last map[string]any
	)
	measured := file.measured()
	for _, segment := range file.Segments {
		recording := Recording{Workload: segment.Workload, Model: model}
		for _, second := range segment.Seconds {
			recording.Seconds = append(recording.Seconds, valuesOf(second, last, &measured))
			last = second
		}
		n := len(recording.Seconds)
		switch {
		case n == 0:
			return nil, fmt.Errorf("segment %s has no seconds", segment.Workload)
		case segment.Workload == "idle_no_context":
			idle = recording.Seconds[n-1]
		case segment.Workload != "between":
			recording.Idle = idle
			out = append(out, recording)
		}
	}
	return out, nil
}

// measured are the fields that were recorded: those of the device, which are left out where they
// are 0, and those of the host that some second has.
func (file *recordedFile) measured() (measured [NumFields]bool) {
	for f := range NumFields {
		measured[f] = f.String() != "" && !f.Host()
		for _, segment := range file.Segments {
			for _, second := range segment.Seconds {
				if second[f.String()] != nil {
					measured[f] = true
				}
			}
		}
	}
	return measured
}

// valuesOf returns the values of a second. A counter adds nothing that fell, or whose last value is
// not known, as those of a process in its first second.
func valuesOf(second, last map[string]any, measured *[NumFields]bool) Values {
	values := noValues()
	for f, is := range measured {
		if !is {
			continue
		}
		key := Field(f).String()
		now, _ := second[key].(float64)
		before, _ := last[key].(float64)
		known := last != nil
		if Field(f).Host() {
			known = second["host_state"] != nil && last["host_state"] != nil
		}
		switch {
		case !Field(f).IsCounter():
			values[f] = now
		case known:
			values[f] = max(0, now-before)
		default:
			values[f] = 0
		}
	}
	return values
}

// String returns the key of the field in a recording; "" if it was not recorded. The resident
// memory of the process stands for the anonymous memory of its cgroup.
func (f Field) String() string {
	return map[Field]string{
		Busy: "utilization_ratio", Occupancy: "occupancy_ratio", MemoryUsed: "memory_used_bytes", Power: "power_watts",
		Clock: "clock_hertz_sm", ClockMax: "clock_max_hertz_sm", Energy: "energy_joules_total",
		PCIeReceived: "pcie_receive_bytes_total", PCIeTransmitted: "pcie_transmit_bytes_total", HostCPU: "host_cpu_seconds",
		HostWritten: "host_write_bytes", PageFaults: "host_minflt", MajorFaults: "host_majflt", HostAnon: "host_rss_bytes",
		SM: "engine_sm", Tensor: "engine_tensor", FP64: "engine_fp64", FP32: "engine_fp32", FP16: "engine_fp16",
		Int: "engine_int", DRAM: "engine_dram", Decoder: "engine_decoder", Encoder: "engine_encoder", JPEG: "engine_jpeg",
		OFA: "engine_ofa",
	}[f]
}

// steady is the highest number of last seconds that are repeated: a checkpoint and the two seconds
// before it. startSeconds are the first seconds, which are not.
const (
	steady       = 3
	startSeconds = 3
)

// Trace returns the recording after a time without a process. When it ends, its last seconds are
// repeated. What hangs does so from there on; its seconds before are Works.
func (r Recording) Trace(idle, length time.Duration) Trace {
	return Trace{
		Name: r.Workload + " on " + r.Model.Name, Why: "recorded", Source: "testdata", Model: r.Model, Devices: 1,
		Pod: onePod(), Samples: func(yield func(*Sample) bool) {
			r.play(int(idle/time.Second), int(length/time.Second), yield)
		},
	}
}

// repeated returns the seconds that are repeated. Of PCIe they have the median, since its counters
// show traffic up to 13 s late: a second may have that of the process before.
func (r Recording) repeated() []Values {
	seconds := slices.Clone(r.Seconds[max(0, len(r.Seconds)-max(1, min(steady, len(r.Seconds)-startSeconds))):])
	for _, f := range []Field{PCIeReceived, PCIeTransmitted} {
		gains := make([]float64, len(seconds))
		for i := range seconds {
			gains[i] = seconds[i][f]
		}
		slices.Sort(gains)
		for i := range seconds {
			seconds[i][f] = gains[(len(gains)-1)/2]
		}
	}
	return seconds
}

func (r Recording) play(idle, length int, yield func(*Sample) bool) {
	var sums Values
	s := Sample{Phase: r.Workload}
	repeated := r.repeated()
	for n := range length {
		s.At = Start().Add(time.Duration(n+1) * time.Second)
		i := n - idle
		switch rest := i - len(r.Seconds); {
		case i < 0:
			s.Values, s.Truth = r.Idle, Idle
		case rest < 0:
			s.Values, s.Truth = r.Seconds[i], Works
		default:
			s.Values, s.Truth = repeated[rest%len(repeated)], r.truth()
		}
		for f := range NumFields {
			if f.IsCounter() && !math.IsNaN(s.Values[f]) {
				sums[f] += s.Values[f]
				s.Values[f] = sums[f]
			}
		}
		if !yield(&s) {
			return
		}
	}
}

func (r Recording) truth() Truth {
	switch {
	case strings.HasPrefix(r.Workload, "hang_"), r.Workload == "xid":
		return Hangs
	case strings.HasPrefix(r.Workload, "wait_"):
		return Waits
	default:
		return Works
	}
}
