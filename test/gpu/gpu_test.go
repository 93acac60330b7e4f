//go:build cgo

package gpu

import (
	"encoding/csv"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvml"
)

// column is a property that nvidia-smi --query-gpu prints, and the reading that it is held against.
type column struct {
	name      string
	quantity  driver.Quantity
	label     string
	scale     float64 // of nvidia-smi's unit in the quantity's
	tolerance float64 // relative, since the two look at different moments
	slack     float64 // absolute, in the quantity's unit
}

func columns() []column {
	const mebibytes = 1 << 20
	return []column{
		{"memory.total", driver.MemoryCapacity, "", mebibytes, 0.01, 0},
		{"memory.used", driver.MemoryUsed, "", mebibytes, 0.02, 64 * mebibytes},
		{"power.draw", driver.Power, "", 1, 0.2, 20},
		{"temperature.gpu", driver.Temperature, "gpu", 1, 0, 3},
		{"clocks.sm", driver.Clock, "sm", 1e6, 0.1, 0},
		{"clocks.mem", driver.Clock, "memory", 1e6, 0.1, 0},
	}
}

func TestAgainstNvidiaSMI(t *testing.T) {
	smi, err := exec.LookPath("nvidia-smi")
	if err != nil {
		t.Skip("NOT RUN: this machine has no nvidia-smi, and so no NVIDIA GPU; nothing was proven on hardware")
	}
	source, err := nvml.New(nvml.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := source.Sample(t.Context()); err != nil {
		t.Error(err)
	}
	<-time.After(1500 * time.Millisecond) // for the means between two samples
	samples, err := source.Sample(t.Context())
	if err != nil {
		t.Error(err)
	}
	names := []string{"uuid"}
	for _, c := range columns() {
		names = append(names, c.name)
	}
	out, err := exec.CommandContext(t.Context(), smi, "--query-gpu="+strings.Join(names, ","), "--format=csv,noheader,nounits").Output()
	if err != nil {
		t.Fatal(err)
	}
	reader := csv.NewReader(strings.NewReader(string(out)))
	reader.TrimLeadingSpace = true
	rows, err := reader.ReadAll()
	if err != nil || len(rows) == 0 {
		t.Fatalf("nvidia-smi printed %q: %v", out, err)
	}
	for _, row := range rows {
		compare(t, samples, row)
	}
	for _, s := range samples {
		for _, r := range s.Readings {
			t.Logf("%s %v %q: %v", s.Hardware.UUID, r.Quantity, r.Labels, r.Value)
		}
	}
}

// compare holds the sample of a GPU against its row. What nvidia-smi does not know is "[N/A]".
func compare(t *testing.T, samples []driver.Sample, row []string) {
	t.Helper()
	for _, s := range samples {
		if s.Hardware.UUID != row[0] {
			continue
		}
		for i, c := range columns() {
			v, err := strconv.ParseFloat(row[i+1], 64)
			if err != nil {
				t.Logf("%s: nvidia-smi has %s %q", row[0], c.name, row[i+1])
				continue
			}
			want, found := v*c.scale, false
			for _, r := range s.Readings {
				if r.Quantity == c.quantity && r.Labels[0] == c.label {
					found = true
					if math.Abs(r.Value-want) > c.tolerance*want+c.slack {
						t.Errorf("%s: %s is %v, nvidia-smi has %v", row[0], c.name, r.Value, want)
					}
				}
			}
			if !found {
				t.Errorf("%s: there is no reading of %s, which nvidia-smi has", row[0], c.name)
			}
		}
		return
	}
	t.Errorf("there is no sample of %s, which nvidia-smi lists", row[0])
}
