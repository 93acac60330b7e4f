package dashboards

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestOneIdle compares what the page, top, the Fleet dashboard and the alerts call idle, at several
// settings of --idle.threshold and --idle.network-threshold: for devices that have been used evenly
// for 40 minutes, they agree.
func TestOneIdle(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		utilization, network float64
		idle                 string // worked out by hand, from the uses of evenlyUsed
	}{
		{0.01, 1e4, "eth-0 eth-5000 gpu-0 gpu-0.005"},
		{0.001, 1e2, "eth-0 gpu-0"},
		{0.3, 1e8, "eth-0 eth-2e+07 eth-5000 gpu-0 gpu-0.005 gpu-0.02 gpu-0.2"},
		{0.3, 1e2, "eth-0 gpu-0 gpu-0.005 gpu-0.02 gpu-0.2"},
		{0.001, 1e8, "eth-0 eth-2e+07 eth-5000 gpu-0"},
	} {
		t.Run(fmt.Sprint(c.utilization, c.network), func(t *testing.T) {
			t.Parallel()
			e, at, last := evenlyUsed(t, c.utilization, c.network)
			e.evaluate(t, allGroups(t), at)
			for surface, idle := range map[string][]string{
				"the JSON": reportedQuiet(t, last), "page and top": listedQuiet(last),
				"the Fleet dashboard": fleetIdle(t, e, at), "the alerts": idleAlerts(t, e, at),
			} {
				slices.Sort(idle)
				if got := strings.Join(slices.Compact(idle), " "); got != c.idle {
					t.Errorf("%s: %q are idle, want %q", surface, got, c.idle)
				}
			}
		})
	}
}

// evenlyUsed returns the samples of 40 minutes of a node. Each device has its own claim and is used
// evenly. The use is in the name of the device, as utilization or in bytes a second.
func evenlyUsed(t *testing.T, utilization, network float64) (*engine, time.Time, *exposition.Snapshot) {
	const (
		span   = 40 * time.Minute
		tick   = 10 * time.Second
		scrape = 30 * time.Second
	)
	h := exportertest.NewHistory(t)
	config := exportertest.LedgerConfig()
	config.IdleThreshold, config.NetworkThreshold, config.Advise = utilization, network, false
	h.Ledger = ledger.New(config)
	h.In.Inventory = driver.Inventory{}
	uses := map[string]float64{}
	add := func(prefix string, use float64) {
		name := fmt.Sprint(prefix, use)
		uses[name] = use
		h.In.Inventory[jointest.ID(name)] = driver.Entry{Hardware: driver.Hardware{UUID: name}}
		h.In.View.Allocations = append(h.In.View.Allocations, jointest.Allocation(name, "c-"+name, "p-"+name))
	}
	for _, use := range []float64{0, 0.005, 0.02, 0.2, 0.9} {
		add("gpu-", use)
	}
	for _, use := range []float64{0, 5e3, 2e7, 5e8} {
		add("eth-", use)
	}
	names := slices.Sorted(maps.Keys(uses))
	e := newEngine(t)
	begin := h.Now
	for ; h.Now.Sub(begin) <= span; h.Now = h.Now.Add(tick) {
		for _, name := range names {
			if strings.HasPrefix(name, "gpu") {
				h.ReadOf(name, driver.Reading{Quantity: driver.Utilization, Value: uses[name]})
			} else {
				h.ReadOf(name, driver.Reading{
					Quantity: driver.IOBytes, Labels: driver.Labels{"network", "receive"},
					Value: uses[name] * h.Now.Sub(begin).Seconds(),
				})
			}
		}
		h.In.View.At = h.Now
		h.Advance()
		if h.Now.Sub(begin)%scrape == 0 {
			e.add(t, scraped(families(t, exportertest.Text(t, h.Last)), h.Now,
				"cluster", "c1", "job", "dra-exporter", "instance", "n1", "node", "n1")...)
		}
	}
	return e, begin.Add(span), h.Last
}

func reportedQuiet(t *testing.T, s *exposition.Snapshot) []string {
	var written bytes.Buffer
	var r present.Report
	must.Do(t, errors.Join(present.WriteReport(&written, s, present.Config{Node: "n1", QuietAfter: time.Minute}),
		json.Unmarshal(written.Bytes(), &r)))
	var out []string
	for i := range r.Devices {
		if r.Devices[i].State == book.StateQuiet {
			out = append(out, r.Devices[i].Device)
		}
	}
	return out
}

func listedQuiet(s *exposition.Snapshot) []string {
	var out []string
	for _, row := range present.NewPage(s, present.Config{Node: "n1", QuietAfter: time.Minute}).Devices {
		if row.State == book.StateQuiet {
			out = append(out, row.Device)
		}
	}
	return out
}

// fleetIdle returns the devices that the Fleet dashboard counts as idle.
func fleetIdle(t *testing.T, e *engine, at time.Time) []string {
	vector := must.Get(e.query(`device:dra_state:info{state="idle"}`, at))(t)
	var out []string
	for _, s := range vector {
		out = append(out, s.Metric.Get("device"))
	}
	return out
}

// idleAlerts returns the devices for whose claims an alert would fire.
func idleAlerts(t *testing.T, e *engine, at time.Time) []string {
	var out []string
	for _, g := range allGroups(t) {
		for i := range g.Rules {
			r := &g.Rules[i]
			if !slices.Contains([]string{"DRAClaimIdle", "DRAClaimIdleMemoryHeld"}, r.Alert) {
				continue
			}
			vector := must.Get(e.query(r.Expr, at))(t)
			for _, s := range vector {
				out = append(out, strings.TrimPrefix(s.Metric.Get("resourceclaim_name"), "c-"))
			}
		}
	}
	return out
}
