package hostile

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/amdgpu"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/netdev"
	"github.com/dra-exporter/dra-exporter/driver/scrape"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
)

// input is the input of a source, which a test can spoil in one place at a time.
type input struct {
	// places has a function for each place, which writes a wrong number there, given how it is written
	// in that encoding. The result restores what was there.
	places map[string]func(number string) (restore func())
	// pass lets the hardware work for a second. It returns the joules that it has used so far.
	pass func() float64
	// watts is the highest power of the device.
	watts float64
}

// numbers returns what a place is spoiled with.
func numbers() []string {
	out := []string{"-1", "0", "NaN", "1e300", "9223372036854775807"}
	for _, code := range drivertest.HostileCodes() {
		out = append(out, strconv.FormatFloat(code, 'f', -1, 64))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// play spoils each place of the input with each number, for two readings each, and checks after
// each that there is no incident, and that no more was charged than the hardware has used and can
// use in the slack.
func play(t *testing.T, n *node, in input) {
	t.Helper()
	tick := func(spoil func() func()) {
		joules := in.pass()
		restore := spoil()
		n.tick()
		restore()
		if v := n.total(driver.Energy); v > joules+in.watts*meter.Slack.Seconds() {
			t.Fatalf("%v J are charged, the hardware has used %v J", v, joules)
		}
	}
	none := func() func() { return func() {} }
	for range 3 {
		tick(none)
	}
	before, rejected := n.errors(), 0
	if len(in.places) == 0 || countReadings(n) < 2 {
		t.Fatalf("%d places, %d readings", len(in.places), countReadings(n))
	}
	for i, place := range slices.Sorted(maps.Keys(in.places)) {
		for j, number := range numbers() {
			if testing.Short() && (i+j)%5 > 0 { // make test-deep runs all
				continue
			}
			for range 2 {
				tick(func() func() { return in.places[place](number) })
			}
			for range 2 {
				tick(none)
			}
			if t.Failed() || len(n.flight.Incidents()) > 0 {
				n.wantCalm()
				t.Fatalf("%s was %s", place, number)
			}
			if n.errors() > before {
				t.Fatalf("%s was %s: %v errors are counted", place, number, n.errors()-before)
			}
		}
	}
	for range 40 { // what was left in doubt is decided
		tick(none)
	}
	n.wantCalm()
	for _, count := range n.rejected {
		rejected += count
	}
	t.Logf("%d places, %d rejections: %v", len(in.places), rejected, slices.Sorted(maps.Keys(n.rejected)))
	if rejected == 0 {
		t.Error("nothing was rejected")
	}
	if v := n.total(driver.Energy); in.watts > 0 && v == 0 {
		t.Error("nothing was charged")
	}
}

func countReadings(n *node) (count int) {
	for i := range n.last.Devices {
		count += len(n.last.Devices[i].Values)
	}
	return count
}

// total returns what the claim is charged of a counter.
func (n *node) total(q driver.Quantity) (sum float64) {
	for i := range n.last.Claims {
		for _, v := range n.last.Claims[i].Values {
			if v.Quantity == q {
				sum += v.Value
			}
		}
	}
	return sum
}

// errors returns how many errors the device has counted.
func (n *node) errors() (sum float64) {
	for i := range n.last.Devices {
		for _, v := range n.last.Devices[i].Values {
			if v.Quantity == driver.Errors {
				sum += v.Value
			}
		}
	}
	return sum
}

// spoilFiles returns the places of a tree: the files with one number.
func spoilFiles(t *testing.T, root string, of func(path string) bool) map[string]func(string) func() {
	t.Helper()
	places := map[string]func(string) func(){}
	write := func(path string, content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Error(err)
		}
	}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || !of(path) {
			return err
		}
		content, err := os.ReadFile(path)
		if _, bad := strconv.ParseFloat(strings.TrimSpace(string(content)), 64); bad != nil {
			return err
		}
		places[path] = func(number string) func() {
			now, err := os.ReadFile(path)
			if err != nil {
				t.Error(err)
			}
			write(path, []byte(number+"\n"))
			return func() { write(path, now) }
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return places
}

func tree(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	drivertest.WriteTree(t, root, string(text))
	return root
}

// A GPU of AMD, by its files.
func TestAMDGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pci = "0000:0c:00.0"
		root := tree(t, "../../driver/amdgpu/testdata/server.tree")
		n := newNode(t, driver.Hardware{PCI: pci})
		n.source, n.now = amdgpu.New(root), time.Now()
		began := n.now
		play(t, n, input{
			places: spoilFiles(t, root, func(path string) bool {
				return strings.Contains(path, pci) && !slices.Contains([]string{"class", "device", "vendor", "unique_id"},
					filepath.Base(path))
			}),
			pass: func() float64 {
				time.Sleep(time.Second)
				n.now = time.Now()
				return 500 * n.now.Sub(began).Seconds() // power1_input
			},
			watts: 1e4,
		})
	})
}

// A network interface, by its files.
func TestNetDev(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := tree(t, "../../driver/netdev/testdata/server.tree")
		interfaces, err := filepath.Glob(filepath.Join(root, "class", "net", "*", "statistics"))
		if err != nil || len(interfaces) == 0 {
			t.Fatalf("no interface: %v", err)
		}
		name := filepath.Base(filepath.Dir(interfaces[0]))
		folder, err := filepath.EvalSymlinks(filepath.Dir(interfaces[0]))
		if err != nil {
			t.Fatal(err)
		}
		n := newNode(t, driver.Hardware{NetDev: name})
		n.source, n.now = netdev.New(driver.Host{Sysfs: root, Procfs: t.TempDir()}), time.Now()
		play(t, n, input{
			places: spoilFiles(t, folder, func(path string) bool { return strings.Contains(path, "/statistics/") }),
			pass:   func() float64 { time.Sleep(time.Second); n.now = time.Now(); return 0 },
		})
	})
}

// The pages of other exporters, by their presets.
func TestPages(t *testing.T) {
	for _, test := range []struct {
		preset, label, device string
		hardware              driver.Hardware
	}{
		{preset: "dcgm-exporter", device: "GPU-", label: "UUID"},
		{preset: "dcgm-exporter-4.6", device: "GPU-", label: "UUID"},
		{preset: "nvidia-gpu-exporter", device: "", label: "uuid"},
	} {
		t.Run(test.preset, func(t *testing.T) {
			content, err := os.ReadFile("../../driver/scrape/testdata/" + test.preset + ".prom")
			if err != nil {
				t.Fatal(err)
			}
			found := regexp.MustCompile(test.label + `="(` + test.device + `[^"]+)"`).FindSubmatch(content)
			if found == nil {
				t.Fatal("no device")
			}
			uuid := string(found[1])
			if test.device == "" {
				uuid = "GPU-" + strings.TrimPrefix(uuid, "GPU-")
			}
			page := string(content)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) }))
			t.Cleanup(server.Close)
			config, err := scrape.ParseConfig(fmt.Appendf(nil,
				"endpoints:\n- {name: page, preset: %s, url: %s, interval: 1s, refresh: 0s}\n", test.preset, server.URL),
				t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			n := newNode(t, driver.Hardware{UUID: uuid})
			source := &live{t: t, endpoint: config.Endpoints[0]}
			n.source = source
			places := map[string]func(string) func(){}
			for line := range strings.SplitSeq(page, "\n") {
				name, _, labelled := strings.Cut(line, "{")
				if labelled && !strings.HasPrefix(line, "#") && strings.Contains(line, string(found[1])) {
					places[name] = func(number string) func() {
						whole := page
						page = regexp.MustCompile(`(?m)^(`+regexp.QuoteMeta(name)+`\{.*\}) .*$`).ReplaceAllString(page, "$1 "+number)
						return func() { page = whole }
					}
				}
			}
			play(t, n, input{places: places, pass: func() float64 { return math.Inf(1) }})
		})
	}
}

// live is a source that scrapes at each Sample, by a new source, since an endpoint is asked at most
// once a second.
type live struct {
	t        *testing.T
	endpoint scrape.Endpoint
}

func (l *live) Name() string { return "scrape/page" }

func (l *live) Sample(ctx context.Context) ([]driver.Sample, error) {
	s, err := scrape.New(l.endpoint)
	if err != nil {
		return nil, err
	}
	samples, err := s.Sample(ctx)
	for i := range samples {
		samples[i].Driver = ""
	}
	return samples, err
}
