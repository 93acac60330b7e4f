//go:build cgo

package gpu

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/dcgm"
	"github.com/dra-exporter/dra-exporter/driver/nvml"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

var recordIn = flag.String("record", "", "folder to record the trial on hardware in")

// TestAgainstNvidiaSMI is the trial on hardware. It compares, idle and under a load of two
// processes, the readings of source nvml with the output of nvidia-smi at the same time; the load
// with its effects; the two processes with the shares of their claims; and source dcgm with nvml.
func TestAgainstNvidiaSMI(t *testing.T) {
	smi, err := exec.LookPath("nvidia-smi")
	if err != nil {
		t.Skip("NOT RUN: this machine has no nvidia-smi and so no NVIDIA GPU; nothing was tested on hardware")
	}
	source, err := nvml.New(nvml.Config{})
	must.Do(t, err)
	b := bench{source: source, smi: smi, load: buildLoad(t)}
	result := b.try(t)
	if *recordIn != "" {
		expect.OK(t, record(*recordIn, result, origin(result)))
	}
	check(t, result)
	t.Run("dcgm", func(t *testing.T) { againstDCGM(t, b) })
}

// check checks a trial, new or recorded, and reports what could not be checked.
func check(t *testing.T, result trial) {
	t.Helper()
	for name, l := range map[string]look{"idle": result.Idle, "busy": result.Busy} {
		t.Run(name, func(t *testing.T) {
			findings := must.Get(compare(l))(t)
			report(t, findings)
		})
	}
	t.Run("moved", func(t *testing.T) {
		wrong, unchecked := result.checkMoved()
		tell(t, wrong, unchecked)
	})
	t.Run("attribution", func(t *testing.T) {
		if !result.seen() {
			t.Skip("NOT RUN: the driver reports process numbers of another PID namespace: attribution by process was not tested")
		}
		wrong, unchecked := result.checkAttribution()
		tell(t, wrong, unchecked)
	})
}

func report(t *testing.T, findings []finding) {
	t.Helper()
	compared := 0
	for _, f := range findings {
		switch f.verdict {
		case differs, missing:
			t.Error(f)
		case agrees:
			compared++
			t.Log(f)
		case notCompared:
			t.Log(f)
		}
	}
	expect.That(t, compared != 0, "nothing was compared")
}

func tell(t *testing.T, wrong, unchecked []string) {
	t.Helper()
	for _, text := range wrong {
		t.Error(text)
	}
	for _, text := range unchecked {
		t.Log("not checked: " + text)
	}
}

// againstDCGM compares an embedded engine of DCGM with the readings of source nvml.
func againstDCGM(t *testing.T, b bench) {
	source, err := dcgm.New(dcgm.Config{Address: dcgm.Embedded, Profiling: true})
	must.Do(t, err)
	var ours, others []driver.Sample
	for range 12 { // the engine reads some fields each 10 s
		if others, err = source.Sample(t.Context()); err != nil {
			t.Log(err)
		}
		ours = b.sample(t)
		time.Sleep(time.Second)
	}
	if len(others) == 0 {
		t.Skip("NOT RUN: DCGM reads nothing on this machine (is libdcgm.so.4 installed?): it was not tested on hardware")
	}
	report(t, compareSources(ours, others))
}

// origin returns the README of a recording.
func origin(result trial) string {
	model, version := "unknown", "unknown"
	for _, s := range result.Idle.After {
		if s.Hardware.UUID == result.Device {
			model, version = s.Hardware.Model, s.Hardware.DriverVersion
		}
	}
	return fmt.Sprintf("Recorded by `make test-gpu RECORD=DIR` on %s: %s, driver %s. `trial.json` has the readings of "+
		"source nvml, the other files have the output\n"+
		"of nvidia-smi at that time, without serial numbers, names of processes and supported clocks.\n",
		time.Now().UTC().Format(time.DateOnly), model, version)
}

// Recordings from hardware are checked again.
func TestRecordings(t *testing.T) {
	entries := must.Get(os.ReadDir("testdata"))(t)
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		t.Run(e.Name(), func(t *testing.T) {
			result := must.Get(replay(filepath.Join("testdata", e.Name())))(t)
			check(t, result)
		})
	}
}
