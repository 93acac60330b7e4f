package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// job is a node on which a claim of two pods holds a device: with an incident, and details.
func job(name string) Node {
	detail := func(title string) any {
		return json.RawMessage(fmt.Sprintf(`{"Title":%q,"Node":%q,"Time":"12:00","Sections":[{"Title":"Facts","Rows":[
			[{"Text":"state"},{"Text":"active"}],[{"Text":"happened"},{"Text":"XID 31","Incident":"7"}]]}],
			"Charts":[{"Title":"gpu-1","Charts":[{"Name":"power","Last":"600 W","Least":"0 W","Most":"600 W","Bars":"▁▄█"}]}]}`,
			title, name))
	}
	return answering(name, map[string]any{
		rowsPath: page(name, device("gpu-0", book.StateUnhealthy, 70), device("gpu-1", book.StateActive, 600),
			device("gpu-2", book.StateFree, 0)),
		"team/train": detail("Claim team/train"), "team/rank-0": detail("Pod team/rank-0"),
		"team/rank-1": detail("Pod team/rank-1"), "7": detail("Incident 7"),
	})
}

// watched is a screen of one node that a test reads and types on.
type watched struct {
	t *testing.T
	*readable
	ended chan error
}

func watch(t *testing.T) *watched {
	w := &watched{t, &readable{SimulationScreen: tcell.NewSimulationScreen("UTF-8")}, make(chan error)}
	must.Do(t, w.Init())
	w.SetSize(110, 24)
	v := newScreen(Config{
		Find:     func(context.Context) ([]Node, error) { return []Node{job("node-1")}, nil },
		Interval: time.Hour, Order: ByState, Clean: same,
	}, w.readable)
	go func() { w.ended <- v.run(t.Context()) }()
	return w
}

// has waits until the screen shows all texts, one after the other.
func (w *watched) has(texts ...string) {
	awaitText(w.t, w.readable, func(shown string) bool {
		for _, text := range texts {
			_, rest, found := strings.Cut(shown, text)
			if shown = rest; !found {
				return false
			}
		}
		return true
	})
}

func (w *watched) press(keys string) {
	for _, key := range keys {
		w.InjectKey(tcell.KeyRune, key, tcell.ModNone)
	}
}

func (w *watched) key(keys ...tcell.Key) {
	for _, k := range keys {
		w.InjectKey(k, 0, tcell.ModNone)
	}
}

// end expects that the program has ended, and returns the colours of the screen.
func (w *watched) end() map[tcell.Color]bool {
	expect.OK(w.t, <-w.ended)
	colours := map[tcell.Color]bool{}
	cells, _, _ := w.GetContents()
	for _, c := range cells {
		foreground, background, _ := c.Style.Decompose()
		colours[foreground], colours[background] = true, true
	}
	w.Fini()
	return colours
}

// Keys change the view, Enter shows details with the recording, and Escape shows the table again.
func TestDetails(t *testing.T) {
	w := watch(t)
	w.has("1 devices 3", "2 claims 1", "3 pods 2", "4 incidents 1", "DEVICE", "POWER", "gpu-0")
	w.press("3")
	w.has("POD ", "team/rank-0", "team/rank-1")
	w.press("j")
	w.key(tcell.KeyEnter)
	w.has("Pod team/rank-1 on node-1", "state     active", "power  600 W  (0 W to 600 W)", "▁▄█")
	w.key(tcell.KeyEscape, tcell.KeyBacktab)
	w.has("CLAIM ")
	w.key(tcell.KeyTab)
	w.has("POD ")
	w.press("4")
	w.key(tcell.KeyEnter)
	w.has("Incident 7 on node-1")
	w.press("q1")
	w.has("gpu-1")
	w.press("q")
	expect.That(t, w.end()[tcell.ColorGreen], "an active device is not green")
}

// The keys are those of htop: F1 shows them, F6 sorts by the next order, F4 filters, capitals sort
// at once, F10 quits. NO_COLOR leaves colors out.
func TestKeys(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	w := watch(t)
	w.has("3 devices, 0 held, 1 unhealthy, 1 incident open", "gpu-0", "gpu-1", "by state", "F1 help", "F10 quit")
	w.key(tcell.KeyF1)
	w.has("Keys", "F3 F4 /  filter", "F10 q    quit")
	w.key(tcell.KeyEscape, tcell.KeyF6)
	w.has("gpu-0", "gpu-1", "by device")
	w.press("W")
	w.has("gpu-1", "gpu-0", "by power")
	w.press("I")
	w.has("gpu-2", "gpu-0", "gpu-1", "by power, reversed")
	w.press("P")
	w.has("by utilization, reversed")
	w.key(tcell.KeyF4)
	w.press("gpu-1")
	w.has("gpu-1", "filter: gpu-1_")
	w.key(tcell.KeyEnter)
	w.has(`, 1 with "gpu-1"`)
	w.key(tcell.KeyF10)
	expect.Is(t, len(w.end()), 1, "colors")
}

// Details are those of the exporters, of the first subject that any has; others show nothing.
func TestDescribe(t *testing.T) {
	fails := answering("node-2", nil)
	fails.get = func(context.Context, string, url.Values) (io.ReadCloser, error) { return nil, errors.New("gone") }
	nodes := []Node{fails, job("node-1"), answering("node-3", nil)}
	c := Config{Find: func(context.Context) ([]Node, error) { return nodes, nil }, Clean: same}
	for name, of := range map[string][]Subject{
		"a claim":                 {{View: ViewClaims, Name: "team/train"}},
		"a pod, or else a device": {{View: ViewClaims, Name: "rank-0"}, {View: ViewPods, Name: "team/rank-0"}},
	} {
		var out strings.Builder
		if err := Describe(t.Context(), c, of, &out); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		const want = " on node-1, as of 12:00\n\nFacts\n  state     active\n  happened  XID 31 (7)\n\n" +
			"Recorded of gpu-1\n  power  600 W  (0 W to 600 W)  ▁▄█\n"
		expect.That(t, strings.HasSuffix(out.String(), want), "%s: %s", name, out.String())
	}
	err := Describe(t.Context(), c, []Subject{{View: ViewClaims, Name: "team/no"}}, &strings.Builder{})
	expect.That(t, err != nil && err.Error() == "get detail from node-2: gone", "error %v", err)
	nodes = nodes[1:]
	err = Describe(t.Context(), c, []Subject{{View: ViewClaims, Name: "team/no"}}, &strings.Builder{})
	expect.That(t, err != nil && err.Error() == "team/no: not found on any node that answered", "error %v", err)
}
