package recorded

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs/sysfs"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/rdma"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// folder returns a folder of the recordings. It skips the test if there is none.
func folder(t *testing.T, name string) string {
	t.Helper()
	root := os.Getenv("RECORDED")
	if root == "" {
		t.Skip("NOT RUN: RECORDED names no folder with recordings of real machines")
	}
	return filepath.Join(root, name)
}

// reason explains lines of tables: those whose "RECORDING: VALUE" its pattern matches, and, if when
// is not nil, for which when is true.
type reason struct {
	pattern, why string
	when         func(l line) bool
}

// The outcomes of a comparison.
const (
	right   = "right"
	differs = "differs"
	missing = "missing"
)

// line is one value of a second opinion, and the source's value.
type line struct {
	what, outcome string
	theirs, ours  float64
	why           string // "": unexplained
}

// compare returns a line for each value of the second opinion, sorted by name. Quantities that the
// source lacks are missing. Tolerances allow for rounding: one of the two may have printed three
// digits.
func compare(recording string, theirs, ours map[string]float64, reasons []reason) []line {
	var lines []line
	for _, what := range slices.Sorted(maps.Keys(theirs)) {
		l := line{what: what, outcome: right, theirs: theirs[what]}
		value, ok := ours[what]
		l.ours = value
		switch {
		case !ok:
			l.outcome = missing
		case math.Abs(value-l.theirs) > 1e-3*math.Abs(l.theirs):
			l.outcome = differs
		}
		for _, r := range reasons {
			explains := l.outcome != right && l.why == "" && (r.when == nil || r.when(l))
			if explains && regexp.MustCompile("^(?:"+r.pattern+")$").MatchString(recording+": "+what) {
				l.why = r.why
			}
		}
		lines = append(lines, l)
	}
	return lines
}

// check prints the table of a recording. It fails for each line that is not right and not
// explained.
func check(t *testing.T, recording string, theirs, ours map[string]float64, reasons []reason) {
	must.That(t, len(theirs) != 0, "the second opinion on %s has no values", recording)
	lines := compare(recording, theirs, ours, reasons)
	var table strings.Builder
	count := map[string]int{}
	for _, l := range lines {
		count[l.outcome]++
		value := fmt.Sprint(l.ours)
		if l.outcome == missing {
			value = "-"
		}
		fmt.Fprintf(&table, "\n%-8s %-34s %18v %18s  %s", l.outcome, l.what, l.theirs, value, l.why)
		expect.That(t, l.outcome == right || l.why != "",
			"%s: %s is %s: %v, read %s", recording, l.what, l.outcome, l.theirs, value)
	}
	t.Logf("%s: %d right, %d differ, %d missing\n%-8s %-34s %18s %18s%s", recording, count[right], count[differs],
		count[missing], "", "value", "second opinion", "read", table.String())
}

// Unexplained differences are found, and distinguished from explained ones.
func TestCompare(t *testing.T) {
	theirs := map[string]float64{"power": 9.087, "clock": 1e9, "fan": 3, "voltage": 1}
	ours := map[string]float64{"power": 1.536, "clock": 1.0004e9, "other": 7}
	got := compare("apu", theirs, ours, []reason{
		{"a.*: power", "the processor's too", nil},
		{"apu: fa", "not the whole name", nil},
		{"card: voltage", "another", nil},
		{"apu: voltage", "not so high", func(l line) bool { return l.theirs > 1 }},
	})
	want := []line{
		{"clock", right, 1e9, 1.0004e9, ""},
		{"fan", missing, 3, 0, ""},
		{"power", differs, 9.087, 1.536, "the processor's too"},
		{"voltage", missing, 1, 0, ""},
	}
	expect.That(t, slices.Equal(got, want), "lines %+v, want %+v", got, want)
}

// TestRDMA compares each recorded RDMA device with the values of procfs.
func TestRDMA(t *testing.T) {
	machines, err := filepath.Glob(filepath.Join(folder(t, "rdma"), "*", "*", "ports"))
	must.That(t, err == nil && len(machines) != 0, "no RDMA devices: %v", err)
	seen := map[string]bool{}
	for _, path := range machines {
		path = filepath.Dir(filepath.Dir(path))
		if seen[path] {
			continue
		}
		seen[path] = true
		root := t.TempDir()
		must.Do(t, os.MkdirAll(filepath.Join(root, "class"), 0o755))
		must.Do(t, os.Symlink(path, filepath.Join(root, "class", "infiniband")))
		source := rdma.New(driver.Host{Sysfs: root})
		samples := map[string]driver.Sample{}
		for range 2 { // one sample reads all of 8 devices
			got := must.Get(source.Sample(t.Context()))(t)
			expect.OK(t, drivertest.Validate(got, time.Now()))
			for _, s := range got {
				samples[s.Hardware.RDMADev] = s
			}
		}
		fs := must.Get(sysfs.NewFS(root))(t)
		devices := must.Get(fs.InfiniBandClass())(t)
		for name, device := range devices {
			recording := filepath.Base(path) + "/" + name
			t.Run(recording, func(t *testing.T) {
				check(t, recording, opinionOfProcfs(device), byCounter(samples[name]), []reason{
					{".*: lifespan", "a setting: how long the kernel keeps values", nil},
				})
			})
		}
	}
}

// byCounter returns readings by the names of the counters, without underscores and in lower case.
func byCounter(s driver.Sample) map[string]float64 {
	out := map[string]float64{}
	for what, value := range drivertest.Values(s) {
		switch what {
		case "io_bytes rdma receive":
			what = "portrcvdata"
		case "io_bytes rdma transmit":
			what = "portxmitdata"
		case "rdma_packets receive":
			what = "portrcvpackets"
		case "rdma_packets transmit":
			what = "portxmitpackets"
		case "errors link_down":
			what = "linkdowned"
		}
		if rest, ok := strings.CutPrefix(what, "link_up rdma "); ok {
			out["up "+rest] = value
			continue
		}
		name := what[strings.LastIndex(what, " ")+1:]
		out[strings.ToLower(strings.ReplaceAll(name, "_", ""))] = value
	}
	return out
}

// opinionOfProcfs returns procfs' values of a device, summed over its ports. The names are those of
// its fields in lower case, which are those of the counters without underscores.
func opinionOfProcfs(device sysfs.InfiniBandDevice) map[string]float64 {
	out := map[string]float64{}
	for number, port := range device.Ports {
		const active = 4
		up := 0.
		if port.StateID == active {
			up = 1
			out["speed"] += float64(port.Rate)
		}
		out[fmt.Sprintf("up %d", number)] = up
		for _, counters := range []any{port.Counters, port.HwCounters} {
			v := reflect.ValueOf(counters)
			for i := range v.NumField() {
				if n, ok := reflect.TypeAssert[*uint64](v.Field(i)); ok && n != nil {
					out[strings.ToLower(v.Type().Field(i).Name)] += float64(*n)
				}
			}
		}
	}
	return out
}
