package recorded

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
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
