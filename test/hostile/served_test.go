package hostile

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/health"
	"github.com/dra-exporter/dra-exporter/driver/health/healthtest"
	"github.com/dra-exporter/dra-exporter/driver/kmsg"
	"github.com/dra-exporter/dra-exporter/driver/scrape"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The pages of other exporters, by their presets.
func TestPages(t *testing.T) {
	files, err := filepath.Glob("../../driver/scrape/testdata/*.prom")
	must.That(t, err == nil && len(files) >= 10, "%d pages: %v", len(files), err)
	for _, file := range files {
		preset := strings.TrimSuffix(filepath.Base(file), ".prom")
		t.Run(preset, func(t *testing.T) { playPage(t, preset, file) })
	}
}

// playPage plays the page of a preset with the numbers of the device of which it has the most.
func playPage(t *testing.T, preset, file string) {
	content := must.Get(os.ReadFile(file))(t)
	timed := regexp.MustCompile(`(?m)^([^#].* [^ ]+) \d{13}$`) // the times of samples are those of the node
	p := &page{lines: strings.Split(timed.ReplaceAllString(string(content), "$1"), "\n")}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	config, err := scrape.ParseConfig(fmt.Appendf(nil,
		"endpoints:\n- {name: page, preset: %s, url: %s, interval: 1s, refresh: 0s}\n", preset, server.URL), t.TempDir())
	must.Do(t, err)
	n := newNode(t, driver.Hardware{})
	source := &live{endpoint: config.Endpoints[0], now: func() time.Time { return n.now }}
	n.source = source
	samples, err := source.Sample(t.Context())
	must.That(t, err == nil && len(samples) != 0, "%d samples: %v", len(samples), err)
	device := slices.MaxFunc(samples, func(a, b driver.Sample) int { return len(a.Readings) - len(b.Readings) })
	n.hardware, source.of, source.named = device.Hardware, device.Hardware, device.Device
	const watts = 300
	in := input{
		rates: map[driver.Quantity]float64{driver.Energy: watts}, ownRejections: func() int { return source.rejected },
		replaced: preset == "gke-tpu-device-plugin", // it has each number twice, of the node and of the container
	}
	before := source.values(t)
	counts := map[int]float64{} // the lines of energy, with what they count for a joule
	for i := range p.lines {
		line := place{name: p.lines[i], read: func() float64 { return p.read(i) }, write: func(number string) func() {
			return p.write(i, number)
		}}
		if !number().MatchString(p.lines[i]) {
			continue
		}
		undo := line.write(strconv.FormatFloat(line.read()+1, 'f', -1, 64))
		after := source.values(t)
		if joules := after["energy"] - before["energy"]; joules != 0 {
			counts[i] = 1 / joules
		}
		undo()
		if !maps.Equal(before, after) {
			in.places = append(in.places, line)
		}
	}
	if len(counts) == 0 {
		in.rates = nil // that of its power, if it has one
	}
	in.pass = func() {
		for i, count := range counts {
			p.write(i, strconv.FormatFloat(p.read(i)+watts*count, 'f', 3, 64))
		}
	}
	play(t, n, in)
}

// page is what another exporter serves.
type page struct{ lines []string }

func (p *page) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprint(w, strings.Join(p.lines, "\n"))
}

// number finds the number in a line.
func number() *regexp.Regexp { return regexp.MustCompile(`^([^#{ ]+(?:\{.*\})? )([^ ]+)(.*)$`) }

func (p *page) read(line int) float64 {
	v, _ := strconv.ParseFloat(number().FindStringSubmatch(p.lines[line])[2], 64)
	return v
}

func (p *page) write(line int, text string) (restore func()) {
	was := p.lines[line]
	p.lines[line] = number().ReplaceAllString(was, "${1}"+text+"${3}")
	return func() { p.lines[line] = was }
}

// live is a source that scrapes at each Sample, by a new source, since an endpoint is asked at most
// once a second. What it reads has the time of the node.
type live struct {
	endpoint scrape.Endpoint
	now      func() time.Time
	of       driver.Hardware // the node's device
	named    string          // its name on the page; "": it has none
	rejected int             // the number of rows that were rejected
}

func (l *live) Name() string { return "scrape/page" }

func (l *live) Sample(ctx context.Context) ([]driver.Sample, error) {
	s, err := scrape.New(l.endpoint, "")
	if err != nil {
		return nil, err
	}
	samples, err := s.Sample(ctx)
	for _, count := range s.Rejected() {
		l.rejected += count
	}
	for i := range samples {
		samples[i].Driver = jointest.ID("gpu-0").Driver
		if l.named != "" && samples[i].Device == l.named {
			samples[i].Device = jointest.ID("gpu-0").Device
		}
		for j := range samples[i].Readings {
			samples[i].Readings[j].At = l.now()
		}
	}
	return samples, err
}

// device returns the name of the node's device in samples.
func (l *live) device() string {
	if l.named == "" {
		return ""
	}
	return jointest.ID("gpu-0").Device
}

// values returns what is read of the node's device now.
func (l *live) values(t *testing.T) map[string]float64 {
	samples := must.Get(l.Sample(t.Context()))(t)
	out := map[string]float64{}
	for i := range samples {
		if reflect.DeepEqual(samples[i].Hardware, l.of) && samples[i].Device == l.device() {
			maps.Copy(out, drivertest.Values(samples[i]))
		}
	}
	return out
}

// hostileHealth returns reports about the device, none of which says that it is unhealthy.
func hostileHealth(id driver.ID) map[string][]*healthv1.DeviceHealth {
	device := func(status int32, message string) *healthv1.DeviceHealth {
		return healthtest.DeviceOf(id.Pool, id.Device, healthv1.HealthStatus(status), message)
	}
	out := map[string][]*healthv1.DeviceHealth{
		"doubled":    {device(int32(healthv1.HealthStatus_UNHEALTHY), ""), device(int32(healthv1.HealthStatus_HEALTHY), "")},
		"no device":  {{Health: healthv1.HealthStatus_UNHEALTHY}},
		"no pool":    {healthtest.DeviceOf("", id.Device, healthv1.HealthStatus_UNHEALTHY, "")},
		"no name":    {healthtest.DeviceOf(id.Pool, "", healthv1.HealthStatus_UNHEALTHY, "")},
		"other pool": {healthtest.DeviceOf(id.Pool+"x", id.Device, healthv1.HealthStatus_UNHEALTHY, "")},
		"a message":  {device(0, "\x1b[2J\nNaN "+strings.Repeat("x", 1<<16))},
		"nothing":    {},
	}
	for _, status := range []int32{-1, 3, math.MaxInt32, math.MinInt32} {
		out[fmt.Sprint("status ", status)] = []*healthv1.DeviceHealth{device(status, "")}
	}
	for _, v := range []int64{-1, 0, math.MaxInt64, math.MinInt64, math.MaxUint32} {
		late := device(int32(healthv1.HealthStatus_HEALTHY), "")
		late.HealthCheckTimeoutSeconds, late.LastUpdatedTime = v, v
		out[fmt.Sprint("times ", v)] = []*healthv1.DeviceHealth{late}
	}
	return out
}

// The health that drivers report, by their streams.
func TestHealth(t *testing.T) {
	id, root := jointest.ID("gpu-0"), healthtest.Root(t)
	plugin := &healthtest.Driver{Name: id.Driver}
	plugin.Start(t, root)
	source := health.New(root)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); source.Watch(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	n, serial := newNode(t, driver.Hardware{}), 0
	n.source = source
	report := func(devices ...*healthv1.DeviceHealth) { // and waits until the source has it
		serial++
		marker := fmt.Sprint("marker-", serial)
		plugin.Set(append(devices, healthtest.DeviceOf(id.Pool, marker, healthv1.HealthStatus_HEALTHY, ""))...)
		for begun := time.Now(); ; time.Sleep(time.Millisecond) {
			n.tick()
			if slices.ContainsFunc(n.samples, func(s driver.Sample) bool { return s.Device == marker }) {
				return
			}
			must.That(t, time.Since(begun) <= time.Minute, "a report did not arrive in a minute")
		}
	}
	well := healthtest.DeviceOf(id.Pool, id.Device, healthv1.HealthStatus_HEALTHY, "")
	for name, devices := range hostileHealth(id) {
		report(well)
		report(devices...)
		for _, value := range statuses(n, "unhealthy") {
			expect.That(t, value == 0, "%s: unhealthy", name)
		}
		report(well)
		if got := statuses(n, "healthy"); !slices.Equal(got, []float64{1}) {
			t.Errorf("%s: healthy is %v afterwards", name, got)
		}
	}
	n.wantCalm()
	for _, reason := range []driver.Reason{driver.ReasonMissingPool, driver.ReasonMissingDevice, driver.ReasonDuplicate} {
		expect.That(t, source.Rejected()[reason] != 0, "nothing was rejected as %s", reason)
	}
}

// hostileLog returns records of the kernel log, none of which says that something has failed, by
// what is wrong with them. XXX stands for the number and the time of the next record.
func hostileLog() map[string]string {
	const xid = "NVRM: Xid (PCI:0000:65:00): "
	out := map[string]string{
		"no number of a record": "4,x,1,-;" + xid + "79, GPU has fallen off the bus.", "no text": "XXX", "no record": ";;;;",
		"a user's record": "12,XXX,-;" + xid + "79, GPU has fallen off the bus.",
		"no place":        "4,XXX,-;NVRM: Xid (PCI:): 79, GPU has fallen off the bus.",
		"another place":   "4,XXX,-;NVRM: Xid (PCI:NaN:-1:zz): 79, GPU has fallen off the bus.",
		"cut":             "4,XXX,-;NVRM: Xid (PCI:0000:65",
		"no code":         "4,XXX,-;" + xid,
		"an old record":   "4,1,1,-;" + xid + "79, x",
		"no error":        "4,XXX,-;" + xid + "154, GPU recovery action changed from 0x0 (None) to 0x0 (None)",
		"long":            "4,XXX,-;" + strings.Repeat("x", 1<<15) + xid + "79, x",
		"binary":          "4,XXX,-;\x00\x1b[2J\xff" + xid + "\x00, x",
		"SXid of 0":       "4,XXX,-;nvidia-nvswitch0: SXid (PCI:0000:65:00.0): 0, Fatal, Link 1 x",
		"no SXid":         "4,XXX,-;nvidia-nvswitch0: SXid (PCI:0000:65:00.0): x, Fatal, Link 1 x",
		"time of 2^63":    "4,9,9223372036854775807,-;" + xid + "79, x",
	}
	for _, code := range []string{"-1", "NaN", "9223372036854775807", "18446744073709551616", "1e3", "0x4f", "79.5"} {
		out["code "+code] = "4,XXX,-;" + xid + code + ", GPU has fallen off the bus."
	}
	return out
}

// The kernel log, by its records.
func TestKernelLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, sequence := newFiles(t), 5000
		drivertest.WriteTree(t, f.root, `
sys/bus/pci/devices/0000:65:00.0/vendor: 0x10de
sys/bus/pci/devices/0000:65:00.0/class: 0x030200
kmsg: 6,5000,0,-;Linux
`)
		log := filepath.Join(f.root, "kmsg")
		n := newNode(t, driver.Hardware{PCI: "0000:65:00.0"})
		source := kmsg.New(driver.Host{Kmsg: log, Sysfs: filepath.Join(f.root, "sys"), Procfs: filepath.Join(f.root, "proc")})
		n.source = source
		tick := func() {
			time.Sleep(time.Second)
			n.now = time.Now()
			n.tick()
		}
		write := func(records ...string) {
			for _, r := range records {
				sequence++
				r = strings.ReplaceAll(r, "XXX", fmt.Sprint(sequence, ",", 1000*sequence))
				f.write(log, f.read(log)+r+"\n")
			}
			tick()
			tick()
		}
		tick()
		var all []string
		for name, record := range hostileLog() {
			all = append(all, record)
			write(record)
			if errors := n.countErrors(); errors > 0 {
				t.Fatalf("%s: %v errors are counted", name, errors)
			}
		}
		write(all...)
		n.wantCalm()
		if errors := n.countErrors(); errors > 0 || source.Rejected()[driver.ReasonMalformed] == 0 {
			t.Errorf("%v errors are counted; rejected %v", errors, source.Rejected())
		}
		write("4,XXX,-;NVRM: Xid (PCI:0000:65:00): 31, pid=1, name=x, Ch 00000008")
		expect.Is(t, n.countErrors(), 1, "errors are counted of a true one")
	})
}

// statuses returns the values of the device's status.
func statuses(n *node, status string) (out []float64) {
	for labels, value := range n.wantNumbers()["dra_device_health"] {
		if strings.Contains(labels, `status="`+status+`"`) {
			out = append(out, value)
		}
	}
	return out
}
