package ledger_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestStates has a device for each state in a snapshot, and for each rule of precedence.
func TestStates(t *testing.T) {
	want := map[string]book.State{
		"active": book.StateActive, "quiet": book.StateQuiet, "half-quiet": book.StateActive,
		"power-only": book.StateUnmeasured, "guest": book.StateGuest, "idle-guest": book.StateUnavailable,
		"free": book.StateFree, "admin": book.StateFree, "tainted": book.StateTainted, "hinted": book.StateFree,
		"tainted-active": book.StateActive,
		"sick":           book.StateUnhealthy, "sick-free": book.StateUnhealthy, "lost": book.StateUnhealthy,
		"no-link": book.StateUnhealthy, "no-link-free": book.StateFree, "one-of-two-links": book.StateActive,
		"whole": book.StatePartitioned, "part": book.StateActive, "no-part": book.StateUnavailable,
		"unlisted": book.StatePartitioned, "unread-part": book.StateUnavailable,
		"static": book.StatePartitioned, "static-part": book.StateFree, "uncut": book.StateFree,
		"not-cut": book.StateUnavailable, "channel": book.StateUnavailable, "driverless": book.StateUnavailable,
		"dark": book.StateUnhealthy, "unread": book.StateFree,
	}
	h := exportertest.NewHistory(t)
	delete(h.In.Inventory, jointest.ID("gpu-0"))
	taint := func(effect string) []driver.Taint { return []driver.Taint{{Key: "k", Effect: effect}} }
	for name := range want {
		e := driver.Entry{Hardware: driver.Hardware{UUID: name}}
		switch name {
		case "guest", "idle-guest":
			e.Kind = driver.KindPassthrough
		case "channel":
			e.Kind = driver.KindChannel
		case "tainted", "tainted-active":
			e.Taints = taint("NoSchedule")
		case "hinted":
			e.Taints = taint("None")
		case "driverless":
			e.DriverGone = true
		case "unlisted":
			e.Unlisted = true
		case "part", "no-part", "static-part", "not-cut", "unread-part":
			e.Kind = driver.KindPartition
			e.Parent = map[string]string{"static-part": "static", "not-cut": "uncut", "unread-part": "unlisted"}[name]
			if e.Parent == "" {
				e.Parent = "whole"
			}
		}
		h.In.Inventory[jointest.ID(name)] = e
	}
	for claim, device := range map[string]string{
		"a": "active", "b": "quiet", "c": "half-quiet", "d": "half-quiet", "e": "power-only", "f": "guest", "g": "sick",
		"h": "part", "i": "tainted-active", "j": "admin", "k": "lost",
		"l": "no-link", "m": "one-of-two-links",
	} {
		allocation := jointest.Allocation(device, claim, "p-"+claim)
		allocation.Admin = device == "admin"
		h.In.View.Allocations = append(h.In.View.Allocations, allocation)
	}
	for range 2 {
		for _, name := range []string{
			"active", "quiet", "half-quiet", "free", "admin", "tainted", "hinted", "tainted-active", "sick", "sick-free",
			"lost", "dark", "whole", "part", "static", "static-part", "uncut", "unlisted",
			"no-link", "no-link-free", "one-of-two-links",
		} {
			readings := []driver.Reading{{Quantity: driver.Utilization}}
			if name != "quiet" {
				readings[0].Value = 1
			}
			if strings.HasPrefix(name, "sick") {
				readings = append(readings, driver.Reading{
					Quantity: driver.Health, Labels: driver.Labels{"unhealthy"}, Value: 1,
				})
			}
			link := driver.Reading{Quantity: driver.LinkUp, Labels: driver.Labels{"network"}}
			switch name {
			case "no-link", "no-link-free":
				readings = append(readings, link)
			case "one-of-two-links":
				other := link
				other.Labels[0], other.Value = "rdma", 1
				readings = append(readings, link, other)
			}
			h.ReadOf(name, readings...)
		}
		h.ReadOf("power-only", jointest.Watts(1))
		h.Pass(10 * time.Second)
	}
	h.ReadOf("lost")
	h.ReadOf("dark")
	x := h.Tick(time.Second)
	for i, state := range h.Last.States(20 * time.Second) {
		name := h.Last.Devices[i].ID.Device
		expect.Is(t, state, want[name], "%s", name)
		wantExported(t, x, name, state)
	}
}

// wantExported checks the series of a device's state.
func wantExported(t *testing.T, x exportertest.Scraped, name string, state book.State) {
	reasons := map[string]string{
		"sick": "reported", "sick-free": "reported", "lost": "lost", "dark": "unreadable", "no-link": "link_down",
		"unread": "no_telemetry",
	}
	rows := x.Matching("dra_device_state", "device="+name)
	switch state {
	case book.StateUnavailable:
		expect.That(t, len(rows) == 0, "%s: got %v, want none", name, rows)
		return
	case book.StateActive, book.StateQuiet:
		state = "held"
	default:
	}
	row := x.Matching("dra_device_state", "device="+name, "state="+string(state), "reason="+reasons[name])
	expect.That(t, len(rows) == 1 && len(row) == 1,
		"%s: got %v, want the state %s, reason %q", name, rows, state, reasons[name])
}

// TestStatesAreDocumented checks the table of states in exporter/MEANING.md.
func TestStatesAreDocumented(t *testing.T) {
	readme := must.Get(os.ReadFile("../MEANING.md"))(t)
	var rows []string
	for _, s := range book.States() {
		expect.That(t, s.Meaning() != "", "%s has no meaning", s)
		rows = append(rows, fmt.Sprintf("| %s | %s |", s, s.Meaning()))
	}
	if table := strings.Join(rows, "\n"); !strings.Contains(string(readme), table) {
		t.Errorf("exporter/MEANING.md does not have this table:\n%s", table)
	}
}

// Every state has its own place in the order of attention. Broken and wasted devices are first.
func TestCompareAttention(t *testing.T) {
	states := book.States()
	slices.SortFunc(states, book.CompareAttention)
	first := []book.State{book.StateUnhealthy, book.StateStalled, book.StateIdle}
	expect.That(t, slices.Equal(states[:3], first) && states[len(states)-1] == book.StateFree, "the order is %v", states)
	for i := 1; i < len(states); i++ {
		expect.That(t, book.CompareAttention(states[i-1], states[i]) < 0,
			"%s and %s have the same place", states[i-1], states[i])
	}
}
