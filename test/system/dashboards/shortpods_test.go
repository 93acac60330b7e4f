package dashboards

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// TestShortPods compares the records by workload with and without --pod.min-lifetime with
// arithmetic by hand: pods of 50 s of a Job one after another, at 100 W, and one of a Deployment
// that stays, at 50 W.
func TestShortPods(t *testing.T) {
	t.Parallel()
	for _, minLifetime := range []time.Duration{0, 2 * time.Minute} {
		t.Run(minLifetime.String(), func(t *testing.T) {
			t.Parallel()
			e, end := playShortPods(t, minLifetime)
			for expr, want := range map[string]float64{
				`energy_joules:increase{workload_name="short"}`:           shortPods * 50 * 100,
				`energy_joules:increase{workload_name="long"}`:            30 * 60 * 50,
				`allocated_share_seconds:increase{workload_name="short"}`: shortPods * 50,
			} {
				got, err := e.query("sum(sum_over_time(workload:dra_"+expr+"[40m]))", end)
				if err != nil {
					t.Fatal(err)
				}
				// Prometheus extrapolates the increase of each series to the window of its rate.
				if len(got) != 1 || math.Abs(got[0].F-want) > 0.05*want {
					t.Errorf("%s is %v, want %v", expr, got, want)
				}
			}
			series, err := e.query(`count(count_over_time(dra_pod_energy_joules_total[40m]))`, end)
			if err != nil {
				t.Fatal(err)
			}
			if want := map[time.Duration]float64{0: shortPods + 1, 2 * time.Minute: 3}[minLifetime]; series[0].F != want {
				t.Errorf("%v series of pods were scraped, want %v", series[0].F, want)
			}
		})
	}
}

const shortPods = 30 // one a minute

// playShortPods scrapes the exporter for 40 minutes and evaluates the rules as often as a server
// does. It returns the time of the last evaluation.
func playShortPods(t *testing.T, minLifetime time.Duration) (*engine, time.Time) {
	t.Helper()
	e := newEngine(t)
	h := exportertest.NewHistory(t)
	config := exportertest.LedgerConfig()
	config.MinLifetime = minLifetime
	h.Ledger = ledger.New(config)
	h.In.Inventory[jointest.ID("gpu-1")] = driver.Entry{Hardware: driver.Hardware{UUID: "gpu-1"}}
	held := func(device, pod, kind, name string) podresources.Allocation {
		a := jointest.Allocation(device, pod, pod)
		a.Holders[0].Meta = &podresources.PodMeta{WorkloadKind: kind, WorkloadName: name}
		return a
	}
	every := 2 * rules.Defaults().IdleInterval
	records := workloadRules(t, rules.Defaults().IdleInterval)
	for second := 0; second <= 40*60; second += 5 {
		h.In.View.Allocations = nil
		minute, of := second/60, second%60
		if minute >= 1 && minute <= shortPods && of < 50 {
			h.In.View.Allocations = append(h.In.View.Allocations, held("gpu-0", fmt.Sprint("short-", minute), "Job", "short"))
		}
		if minute >= 1 && minute <= 30 {
			h.In.View.Allocations = append(h.In.View.Allocations, held("gpu-1", "long-0", "Deployment", "long"))
		}
		h.Read(driver.Reading{Quantity: driver.Power, Value: 100})
		h.ReadOf("gpu-1", driver.Reading{Quantity: driver.Power, Value: 50})
		h.In.View.At = h.Now
		h.Advance()
		if second%15 == 0 {
			text := exportertest.Encode(t, exportertest.Render(h.Last, exposition.Config{ZeroHold: 20 * time.Second}),
				expfmt.NewFormat(expfmt.TypeTextPlain))
			e.add(t, scraped(families(t, text), h.Now,
				"cluster", "c1", "job", "dra-exporter", "instance", "n1", "node", "n1")...)
		}
		if second%int(every.Seconds()) == 0 {
			e.evaluate(t, records, h.Now)
		}
		h.Now = h.Now.Add(5 * time.Second)
	}
	return e, h.Now.Add(-5 * time.Second)
}
