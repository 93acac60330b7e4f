package top

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The traffic that a report has is shown of devices, claims, pods and namespaces, in a column that
// is left out if nothing has any.
func TestTraffic(t *testing.T) {
	r := report("node-1", device("gpu-0", book.StateFree, value("power", 70)), device("eth0", book.StateActive))
	rate := 1e8
	part := present.HolderReport{Namespace: "team", Name: "nic", ID: r.Devices[1].ID, Traffic: &rate}
	r.Devices[1].Traffic, r.Claims, r.Pods = &rate, []present.HolderReport{part}, []present.HolderReport{part}
	c := Config{Format: FormatTable, Clean: same, Order: ByTraffic}
	c.Find = func(context.Context) ([]Node, error) {
		return []Node{answering("a", map[string]any{snapshotPath: r})}, nil
	}
	lines := func() []string {
		var out strings.Builder
		must.Do(t, Print(t.Context(), c, &out))
		return strings.Split(out.String(), "\n")
	}
	for _, c.View = range Views()[:4] {
		if got := lines(); !strings.Contains(got[2], "TRAFFIC") || !strings.Contains(got[3], " 100 MB/s") {
			t.Errorf("%s: %s", c.View, strings.Join(got, "\n"))
		}
	}
	c.View, c.Filter = ViewDevices, "gpu-0"
	if got := lines(); strings.Contains(got[2], "TRAFFIC") || strings.Contains(got[3], "MB/s") {
		t.Errorf("without traffic: %s", strings.Join(got, "\n"))
	}
}

// The keys are those of htop: F1 shows them, F6 sorts by the next order, F4 filters, capitals sort
// at once, F10 quits. NO_COLOR leaves colors out.
func TestKeys(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	terminal := &readable{SimulationScreen: tcell.NewSimulationScreen("UTF-8")}
	must.Do(t, terminal.Init())
	terminal.SetSize(120, 20)
	v := newScreen(Config{
		Find: func(context.Context) ([]Node, error) {
			return []Node{answering("a", map[string]any{
				snapshotPath: report("node-1", device("gpu-0", book.StateUnhealthy, value("power", 70)),
					device("gpu-1", book.StateActive, value("power", 600), value("utilization", 0.9))),
			})}, nil
		},
		Interval: time.Hour, Order: ByState, Clean: same,
	}, terminal)
	ended := make(chan error)
	go func() { ended <- v.run(t.Context()) }()
	shows := func(texts ...string) {
		t.Helper()
		awaitText(t, terminal, func(shown string) bool {
			at := 0
			for _, text := range texts {
				next := strings.Index(shown[at:], text)
				if next < 0 {
					return false
				}
				at += next
			}
			return true
		})
	}
	key := func(keys ...tcell.Key) {
		for _, k := range keys {
			terminal.InjectKey(k, 0, tcell.ModNone)
		}
	}
	shows("gpu-0", "gpu-1", "by state", "F1 help", "F10 quit")
	key(tcell.KeyF1)
	shows("Keys", "F3 F4 /  filter", "F10 q    quit")
	key(tcell.KeyEscape, tcell.KeyF6)
	shows("gpu-0", "gpu-1", "by device")
	terminal.InjectKey(tcell.KeyRune, 'W', tcell.ModNone)
	shows("gpu-1", "gpu-0", "by power")
	terminal.InjectKey(tcell.KeyRune, 'I', tcell.ModNone)
	shows("gpu-0", "gpu-1", "by power, reversed")
	terminal.InjectKey(tcell.KeyRune, 'P', tcell.ModNone)
	shows("gpu-0", "gpu-1", "by utilization, reversed")
	key(tcell.KeyF4)
	terminal.InjectKey(tcell.KeyRune, '1', tcell.ModNone)
	shows("gpu-1", "filter: 1_")
	key(tcell.KeyF10)
	expect.OK(t, <-ended)
	cells, _, _ := terminal.GetContents()
	for _, c := range cells {
		foreground, background, _ := c.Style.Decompose()
		must.That(t, foreground == tcell.ColorDefault && background == tcell.ColorDefault, "%q is colored", string(c.Runes))
	}
	terminal.Fini()
}
