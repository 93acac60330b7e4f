package top

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/web/decode"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// network is a node with a GPU and a network device, whose counters are those of a number of
// seconds: 100 MB/s of its network, and as much on its PCIe link.
func network(seconds int) present.Report {
	bytes := func(link, direction string) present.ValueReport {
		v := value("io_bytes", 5e7*float64(seconds))
		v.Labels = map[string]string{"link": link, "direction": direction}
		return v
	}
	values := []present.ValueReport{
		bytes("network", "receive"), bytes("rdma", "transmit"), bytes("pcie", "receive"),
	}
	r := report("node-1", device("gpu-0", book.StateFree, value("power", 70)),
		device("eth0", book.StateActive, values...))
	r.Time = r.Time.Add(time.Duration(seconds) * time.Second)
	r.Devices[1].Shares = []present.ShareReport{{Namespace: "team", Claim: "nic", Pods: []string{"team/p"}}}
	part := present.HolderReport{Namespace: "team", Name: "nic", ID: r.Devices[1].ID, Values: values}
	r.Claims = []present.HolderReport{part}
	part.Name = "p"
	r.Pods = []present.HolderReport{part}
	return r
}

// Traffic is the rate between two reports of an exporter, of networks only. It stays while the
// report is the same, and is unknown after a counter has begun again.
func TestTraffic(t *testing.T) {
	f, before := fleet{answers: map[string]*answer{}}, flows(nil)
	for _, tt := range []struct {
		seconds int
		want    string
	}{{10, ""}, {12, "100 MB/s"}, {12, "100 MB/s"}, {13, "100 MB/s"}, {3, ""}, {3, ""}, {5, "100 MB/s"}} {
		r := network(tt.seconds)
		r.Time = r.Time.Add(time.Hour)
		if tt.seconds < 10 { // the exporter was restarted
			r.Time = r.Time.Add(time.Hour)
		}
		f.answers["a"] = &answer{name: "a", report: &r}
		var all Everything
		all, before = f.measured(before)
		for what, of := range map[string]present.Figures{
			"device": all.Devices[1].Figures, "claim": all.Claims[0].Figures, "pod": all.Pods[0].Figures,
			"namespace": all.Namespaces[0].Figures,
		} {
			if got := of.TrafficText(); got != tt.want {
				t.Errorf("after %d s the %s has the traffic %q, want %q", tt.seconds, what, got, tt.want)
			}
		}
		if all.Devices[0].TrafficText() != "" {
			t.Error("a GPU without a network has traffic")
		}
	}
}

// The row of a network device has its traffic. Without one there is no such column.
func TestTrafficColumn(t *testing.T) {
	asked := 10
	c := Config{Format: FormatTable, Clean: same, Order: ByTraffic, Interval: time.Hour}
	c.Find = func(context.Context) ([]Node, error) {
		return []Node{{Name: "a", Fetch: func(context.Context, *decode.Account) (present.Report, error) {
			asked++
			return network(asked), nil
		}}}, nil
	}
	var out strings.Builder
	must.Do(t, Print(t.Context(), c, &out))
	lines := strings.Split(out.String(), "\n")
	if !strings.Contains(lines[2], "TRAFFIC") || !strings.HasPrefix(lines[3], "eth0") ||
		!strings.Contains(lines[3], " 100 MB/s ") {
		t.Errorf("asked until second %d:\n%s", asked, out.String())
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("colors in what is no terminal: %q", out.String())
	}
	r := network(20)
	all := Everything{Devices: present.Devices(&r, "")}
	if got := all.table(ViewDevices, true, false, same).titles; slices.Contains(got, "TRAFFIC") {
		t.Errorf("without traffic the columns are %s", got)
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
			return []Node{{Name: "a", Fetch: func(context.Context, *decode.Account) (present.Report, error) {
				return report("node-1", device("gpu-0", book.StateUnhealthy, value("power", 70)),
					device("gpu-1", book.StateActive, value("power", 600), value("utilization", 0.9))), nil
			}}}, nil
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
		if foreground != tcell.ColorDefault || background != tcell.ColorDefault {
			t.Fatalf("%q is colored", string(c.Runes))
		}
	}
	terminal.Fini()
}
