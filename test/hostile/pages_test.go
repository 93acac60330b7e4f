package hostile

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/scrape"
)

// The pages of other exporters, by their presets.
func TestPages(t *testing.T) {
	for _, test := range []struct {
		preset, label, device, energy string
		unit                          float64 // of energy, in joules
	}{
		{preset: "dcgm-exporter", device: "GPU-", label: "UUID", energy: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", unit: 1e-3},
		{preset: "dcgm-exporter-4.6", device: "GPU-", label: "UUID", energy: "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", unit: 1},
		{preset: "nvidia-gpu-exporter", device: "", label: "uuid", energy: "nvidia_smi_energy_joules_total", unit: 1},
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
			n.source = &live{endpoint: config.Endpoints[0], now: func() time.Time { return n.now }}
			var places []place
			for line := range strings.SplitSeq(page, "\n") {
				name, _, labelled := strings.Cut(line, "{")
				if !labelled || strings.HasPrefix(line, "#") || !strings.Contains(line, string(found[1])) {
					continue
				}
				at := regexp.MustCompile(`(?m)^(` + regexp.QuoteMeta(name) + `\{.*\}) (.*)$`)
				places = append(places, place{
					name: name,
					read: func() float64 { v, _ := strconv.ParseFloat(at.FindStringSubmatch(page)[2], 64); return v },
					write: func(number string) func() {
						whole := page
						page = at.ReplaceAllString(page, "$1 "+number)
						return func() { page = whole }
					},
				})
			}
			const watts = 300
			play(t, n, input{places: places, rates: map[driver.Quantity]float64{driver.Energy: watts}, pass: func() {
				for _, p := range places {
					if p.name == test.energy {
						p.write(strconv.FormatFloat(p.read()+watts/test.unit, 'f', 3, 64))
					}
				}
			}})
		})
	}
}

// live is a source that scrapes at each Sample, by a new source, since an endpoint is asked at most
// once a second. What it reads has the time of the node.
type live struct {
	endpoint scrape.Endpoint
	now      func() time.Time
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
		for j := range samples[i].Readings {
			samples[i].Readings[j].At = l.now()
		}
	}
	return samples, err
}
