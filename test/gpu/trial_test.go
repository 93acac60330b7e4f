package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// bench is a machine with GPUs.
type bench struct {
	source    driver.Source
	smi, load string // the programs nvidia-smi and load
}

// burden is the load of a process on a GPU.
type burden struct {
	Bytes uint64  // of memory
	Share float64 // of the time
	Copy  uint64  // bytes, to the GPU in each 50 ms in the mean
}

// burdens are the loads of the two processes of a trial. They differ, so that confusing them is
// detected.
func burdens() [2]burden {
	return [2]burden{{Bytes: 2 << 30, Share: 0.6, Copy: 32 << 20}, {Bytes: 1 << 30, Share: 0.2}}
}

// A trial samples the idle GPU for idleSeconds. It samples the busy one for busySeconds, since the
// driver looks 5 times a second which process runs.
const (
	idleSeconds = 10
	busySeconds = 30
)

// trial is the result of a trial, with everything that its checks need, so that a recording can be
// checked too.
type trial struct {
	Device     string // that was loaded
	Idle, Busy look
	IdleSeries [][]driver.Sample // a second apart
	BusySeries [][]driver.Sample
	Loads      []loaded
}

// loaded is a process of a trial.
type loaded struct {
	PID    int
	Burden burden
	Copied float64 // bytes per second, as the process counted them
}

// try reads the machine, loads its first idle GPU with two processes and reads it again.
func (b bench) try(t *testing.T) trial {
	var out trial
	out.IdleSeries = b.series(t, idleSeconds)
	out.Idle = b.look(t)
	out.Device = idleDevice(out.Idle.After)
	must.That(t, out.Device != "", "every device is busy: none is available for the load")
	var loads []*load
	for _, burden := range burdens() {
		l := must.Get(startLoad(t.Context(), b.load, out.Device, burden))(t)
		t.Cleanup(l.kill)
		loads = append(loads, l)
		out.Loads = append(out.Loads, loaded{PID: l.pid, Burden: burden})
	}
	b.series(t, 3) // until averages no longer include the time before
	out.BusySeries = b.series(t, busySeconds)
	out.Busy = b.look(t)
	for i, l := range loads {
		copied, err := l.stop()
		expect.OK(t, err)
		out.Loads[i].Copied = copied
	}
	return out
}

// series samples once a second.
func (b bench) series(t *testing.T, seconds int) [][]driver.Sample {
	series := make([][]driver.Sample, 0, seconds)
	for range seconds {
		series = append(series, b.sample(t))
		time.Sleep(time.Second)
	}
	return series
}

// sample reads the machine. It retries if the machine was too busy to answer in time.
func (b bench) sample(t *testing.T) []driver.Sample {
	t.Helper()
	for range 50 {
		samples, err := b.source.Sample(t.Context())
		if driver.ReasonOf(err) == driver.ReasonHung {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		expect.OK(t, err)
		return samples
	}
	t.Fatal("the library does not answer in time")
	return nil
}

// look reads the machine before and after nvidia-smi.
func (b bench) look(t *testing.T) look {
	run := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), b.smi, args...).Output()
		return string(out), err
	}
	l := look{Before: b.sample(t)}
	l.query, l.list = must.Get(run("-q", "-x"))(t), must.Get(run("-L"))(t)
	if out, err := run("nvlink", "-gt", "d"); err == nil {
		l.links = out
	} else {
		t.Logf("not compared: NVLinks: nvidia-smi nvlink -gt d: %v", err)
	}
	time.Sleep(time.Second)
	l.After = b.sample(t)
	return l
}

// idleDevice returns the UUID of the first unused GPU without MIG, otherwise of the first unused
// MIG device.
func idleDevice(samples []driver.Sample) string {
	for _, kind := range []driver.Kind{0, driver.KindPartition} {
		for _, s := range samples {
			_, memory := readingIn(samples, s.Hardware.UUID, driver.MemoryUsed, driver.Labels{})
			busy, _ := readingIn(samples, s.Hardware.UUID, driver.Utilization, driver.Labels{})
			if s.Hardware.Kind == kind && memory && busy.Value < 0.05 && len(s.Processes) == 0 {
				return s.Hardware.UUID
			}
		}
	}
	return ""
}

// mean returns the mean of a gauge over a series.
func mean(series [][]driver.Sample, uuid string, q driver.Quantity, labels driver.Labels) (float64, bool) {
	sum, n := 0., 0
	for _, samples := range series {
		if r, ok := readingIn(samples, uuid, q, labels); ok {
			sum, n = sum+r.Value, n+1
		}
	}
	return sum / float64(max(n, 1)), n > 0
}

// rate returns the rate of a counter over a series, per second.
func rate(series [][]driver.Sample, uuid string, q driver.Quantity,
	labels driver.Labels,
) (perSecond float64, estimated, ok bool) {
	if len(series) == 0 {
		return 0, false, false
	}
	first, ok1 := readingIn(series[0], uuid, q, labels)
	last, ok2 := readingIn(series[len(series)-1], uuid, q, labels)
	took := last.At.Sub(first.At).Seconds()
	if !ok1 || !ok2 || took <= 0 {
		return 0, false, false
	}
	return (last.Value - first.Value) / took, last.Estimated, true
}

// checkMoved checks the effects of the load, and reports what could not be checked.
func (t trial) checkMoved() (wrong, unchecked []string) {
	check := func(what string, known bool, v, least, most float64) {
		switch {
		case !known:
			unchecked = append(unchecked, what)
		case v < least || v > most:
			wrong = append(wrong, fmt.Sprintf("%s is %.4g, want %.4g to %.4g", what, v, least, most))
		}
	}
	gauge := func(q driver.Quantity) (idle, busy float64, ok bool) {
		idle, ok1 := mean(t.IdleSeries, t.Device, q, driver.Labels{})
		busy, ok2 := mean(t.BusySeries, t.Device, q, driver.Labels{})
		return idle, busy, ok1 && ok2
	}
	bytes, share := 0., 0.
	for _, l := range t.Loads {
		bytes += float64(l.Burden.Bytes)
		share += l.Burden.Share
	}
	idle, busy, ok := gauge(driver.Utilization)
	check("the increase of utilization", ok, busy-idle, share/2, 1)
	idle, busy, ok = gauge(driver.MemoryUsed)
	const contexts = 3 << 30 // memory that two contexts use in addition to the requested memory
	check("the increase of memory in use", ok, busy-idle, bytes, bytes+contexts)
	idlePower, busyPower, ok := gauge(driver.Power)
	check("the increase of power", ok, busyPower-idlePower, max(5, idlePower/20), 2000)
	joules, _, counted := rate(t.BusySeries, t.Device, driver.Energy, driver.Labels{})
	check("energy per second, as a share of power,", ok && counted, joules/max(busyPower, 1), 0.75, 1.25)
	received, estimated, counted := rate(t.BusySeries, t.Device, driver.IOBytes, driver.Labels{"pcie", "receive"})
	copied := t.Loads[0].Copied
	check("the traffic over PCIe, as a share of the copied bytes,", counted && !estimated, received/max(copied, 1), 0.8,
		1.6)
	return wrong, unchecked
}

// claims returns how the exporter divides the busy device between two claims, each of a pod with
// one of the processes.
func (t trial) claims() *book.Snapshot {
	id := driver.ID{Driver: "gpu.nvidia.com", Pool: "node", Device: "gpu"}
	books := ledger.New(ledger.Config{Retention: time.Minute, IdleThreshold: 0.01})
	pods := map[int]string{}
	var allocations []podresources.Allocation
	for i, l := range t.Loads {
		name := claimName(i)
		pods[l.PID] = "uid-" + name
		allocations = append(allocations, podresources.Allocation{
			Claim: podresources.Claim{Namespace: "test", Name: name}, Device: id, ShareID: name,
			Holders: []podresources.Holder{{
				Pod: podresources.Pod{Namespace: "test", Name: name}, Container: "main",
				UID: "uid-" + name,
			}},
		})
	}
	var snapshot *book.Snapshot
	for _, samples := range t.BusySeries {
		now := samples[0].Readings[0].At
		for _, s := range samples {
			for _, r := range s.Readings {
				now = later(now, r.At)
			}
		}
		snapshot = books.Advance(join.Join(join.Input{
			View:      podresources.View{Allocations: jointest.Held(allocations...), At: now},
			Inventory: driver.Inventory{id: {Hardware: driver.Hardware{UUID: t.Device}}},
			Sources:   []join.SourceSamples{{Name: "nvml", Samples: samples}},
			PodOf:     pods,
		}), now)
	}
	return snapshot
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func claimName(i int) string { return [2]string{"heavy", "light"}[i] }

// seen reports whether the processes of the trial are visible on the device: in another PID
// namespace than the driver's they are missing or have other numbers.
func (t trial) seen() bool {
	for _, l := range t.Loads {
		if !slices.ContainsFunc(t.Busy.After, func(s driver.Sample) bool { _, ok := processMemory(s, l.PID); return ok }) {
			return false
		}
	}
	return true
}

// checkAttribution compares the claims' shares with the load of their processes.
func (t trial) checkAttribution() (wrong, unchecked []string) {
	snapshot := t.claims()
	value := func(claim string, q driver.Quantity) (float64, bool) {
		for _, c := range snapshot.Claims {
			for _, v := range c.Values {
				if c.Name == claim && v.Quantity == q {
					return v.Value, true
				}
			}
		}
		return 0, false
	}
	check := func(what string, v, least, most float64) {
		if !(v >= least && v <= most) {
			wrong = append(wrong, fmt.Sprintf("%s is %.4g, want %.4g to %.4g", what, v, least, most))
		}
	}
	heavy, light := t.Loads[0].Burden, t.Loads[1].Burden
	memory, ok1 := value("heavy", driver.MemoryUsed)
	other, ok2 := value("light", driver.MemoryUsed)
	if !ok1 || !ok2 {
		return []string{"the claims have no memory"}, nil
	}
	check("the heavy claim's memory", memory, float64(heavy.Bytes), float64(heavy.Bytes)+2<<30)
	check("the light claim's memory", other, float64(light.Bytes), float64(light.Bytes)+2<<30)
	check("how much more memory the heavy claim has", memory-other, 0.9*float64(heavy.Bytes-light.Bytes),
		1.1*float64(heavy.Bytes-light.Bytes))
	if snapshot.Devices[0].Attribution != join.AttributionProcess {
		return wrong, append(unchecked,
			fmt.Sprintf("the claims' busy time: the device is divided %q", snapshot.Devices[0].Attribution))
	}
	busy, _ := value("heavy", driver.ActiveSeconds)
	rest, _ := value("light", driver.ActiveSeconds)
	check("the heavy claim's busy time as a multiple of the light one's", busy/max(rest, 1e-9), 1.5, 6)
	check("the claims' busy time as a share of the requested time",
		(busy+rest)/(float64(len(t.BusySeries)-1)*(heavy.Share+light.Share)), 0.5, 1.3)
	energy, _ := value("heavy", driver.Energy)
	power, _ := value("light", driver.Energy)
	check("the heavy claim's energy as a multiple of the light one's", energy/max(power, 1e-9), 1.5, 6)
	return wrong, unchecked
}

// A recording is a folder: trial.json has the readings, with the names of quantities, since their
// numbers may change; the other files have the output of nvidia-smi. README.md states its origin.

// Names of the files of a look.
func queryFile(look string) string { return look + "-nvidia-smi-q.xml" }
func listFile(look string) string  { return look + "-nvidia-smi-L.txt" }
func linksFile(look string) string { return look + "-nvidia-smi-nvlink.txt" }

// record writes a trial into a folder, which it creates.
func record(dir string, t trial, origin string) error {
	text, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("record the trial: %w", err)
	}
	text = regexp.MustCompile(`"Serial":"[^"]*"`).ReplaceAll(text, []byte(`"Serial":""`)) // as in the output of nvidia-smi
	text = regexp.MustCompile(`"Quantity":\d+`).ReplaceAllFunc(text, func(field []byte) []byte {
		number, _ := strconv.Atoi(string(field[len(`"Quantity":`):]))
		return fmt.Appendf(nil, `"Quantity":%q`, driver.Quantity(number).String())
	})
	errs := []error{os.MkdirAll(dir, 0o750)}
	for name, content := range map[string]string{
		"trial.json": string(text) + "\n", "README.md": origin,
		queryFile("idle"): anonymous(t.Idle.query), listFile("idle"): t.Idle.list, linksFile("idle"): t.Idle.links,
		queryFile("busy"): anonymous(t.Busy.query), listFile("busy"): t.Busy.list, linksFile("busy"): t.Busy.links,
	} {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("record the trial: %w", err)
	}
	return nil
}

// anonymous removes data that identify the machine, and the long list of clocks.
func anonymous(query string) string {
	query = regexp.MustCompile(`(?s)<supported_clocks>.*?</supported_clocks>\s*`).ReplaceAllString(query, "")
	query = regexp.MustCompile(`(?s)<process_name>.*?</process_name>`).ReplaceAllString(query,
		"<process_name></process_name>")
	return regexp.MustCompile(`<(serial|pdi|board_id|chassis_serial_number|clusterUuid)>[^<]*<`).ReplaceAllString(query,
		"<$1><")
}

// replay reads a trial from a folder.
func replay(dir string) (t trial, err error) {
	read := func(name string) string {
		text, failed := os.ReadFile(filepath.Join(dir, name))
		err = errors.Join(err, failed)
		return string(text)
	}
	quantity := regexp.MustCompile(`(?i)"quantity":"(\w+)"`)
	text := quantity.ReplaceAllStringFunc(read("trial.json"), func(field string) string {
		name := strings.Split(field, `"`)[3]
		q, ok := driver.Standard().Named(name)
		if !ok {
			err = fmt.Errorf("there is no quantity %q", name)
		}
		return fmt.Sprintf(`"quantity":%d`, q)
	})
	err = errors.Join(err, json.Unmarshal([]byte(text), &t))
	for name, l := range map[string]*look{"idle": &t.Idle, "busy": &t.Busy} {
		l.query, l.list, l.links = read(queryFile(name)), read(listFile(name)), read(linksFile(name))
	}
	if err != nil {
		return trial{}, fmt.Errorf("replay %s: %w", dir, err)
	}
	return t, nil
}
