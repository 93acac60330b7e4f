package page

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/program"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/sim"
	"github.com/dra-exporter/dra-exporter/test/simnode"
)

// TestPage uses one browser for all pages.
func TestPage(t *testing.T) {
	browser := startBrowser(t)
	large, stop := startLarge(t)
	demo := startDemo(t)
	t.Run("large node", func(t *testing.T) { testLarge(t, browser, large) })
	t.Run("exporter gone", func(t *testing.T) { testGone(t, browser, large, stop) })
	t.Run("wide screen", func(t *testing.T) { testWide(t, browser, demo) })
	t.Run("narrow screen", func(t *testing.T) { testNarrow(t, browser, demo) })
	t.Run("without JavaScript", func(t *testing.T) { testWithoutScript(t, browser, demo) })
	t.Run("on call", func(t *testing.T) { testOnCall(t, browser, demo) })
	t.Run("fired alert", func(t *testing.T) { testFiredAlert(t, browser, demo) })
	t.Run("cluster", func(t *testing.T) { testGateway(t, browser, demo) })
	t.Run("names that are markup", func(t *testing.T) { testHostile(t, browser) })
	t.Run("hostile node", func(t *testing.T) { testHostileNode(t, browser) })
}

// rows is an expression of the rows of a table that are not filtered out.
func rows(table string) string {
	return fmt.Sprintf(`[...document.querySelectorAll('#%s tbody tr:not([hidden])')]`, table)
}

// firstCells returns the texts of the first cells of those rows.
func firstCells(b *tab, table string) []string {
	return value[[]string](b, rows(table)+`.map((r) => r.cells[0].textContent)`)
}

// maxRefresh is the limit of the size of a refresh of a large node on the network, in bytes. As
// HTML, it would be 539 kB, or 32 kB compressed.
const maxRefresh = 24 << 10

func testLarge(t *testing.T, browser browser, address string) {
	b := browser.open(t, address, view{width: 1400, height: 1000})
	b.await("shown", rows("pods")+`.length > 0`)
	b.picture("large")
	testLimit(b)
	var natural []string
	for i := range largenode.Devices {
		natural = append(natural, fmt.Sprintf("gpu-%d", i))
	}
	if got := firstCells(b, "devices"); !slices.Equal(got, natural) {
		t.Errorf("the devices are %v", got)
	}
	b.checkWidth()

	testUpdate(b)
	b.press("/")
	b.write("TEAM-4 gpu-20")
	b.await("filtered", `document.querySelector('#pods small').textContent.endsWith(' of 500')`)
	found := value[bool](b, rows("pods")+`.every((r) => /team-4.*gpu-20/.test(r.textContent))`)
	if n := value[int](b, rows("pods")+".length"); !found || n == 0 || n > 50 {
		t.Errorf("%d pods have the words of the filter", n)
	}
	b.picture("large-filtered")
	b.press("Escape")
	b.await("not filtered", rows("pods")+`.length === 500`)

	const utilization = `[...document.querySelectorAll('#devices th')][2]`
	click := utilization + `.querySelector('button').click() || true`
	shown := rows("devices") + `.map((r) => parseFloat(r.cells[2].textContent))`
	for _, want := range []struct {
		sort  string
		order func(a, b float64) int
	}{
		{"descending", func(a, b float64) int { return cmp.Compare(b, a) }}, {"ascending", cmp.Compare[float64]}, {"", nil},
	} {
		value[bool](b, click)
		got, values := value[string](b, utilization+`.getAttribute('aria-sort') ?? ''`), value[[]float64](b, shown)
		if want.order == nil && !slices.Equal(firstCells(b, "devices"), natural) ||
			want.order != nil && (!slices.IsSortedFunc(values, want.order) || values[0] == values[len(values)-1]) {
			t.Errorf("sorted %q, the devices have %v", got, values)
		}
		if got != want.sort {
			t.Errorf("it is sorted %q, want %q", got, want.sort)
		}
	}
}

// testLimit checks that long tables are short until the user requests all rows. It leaves all rows
// shown.
func testLimit(b *tab) {
	b.t.Helper()
	for _, table := range []string{"claims", "pods"} {
		button := fmt.Sprintf(`document.querySelector('#%s .more')`, table)
		expect := func(want int, text string) {
			b.t.Helper()
			n, said := value[int](b, rows(table)+".length"), value[string](b, button+".textContent")
			if n != want || said != text {
				b.t.Errorf("%d %s are shown above %q, want %d and %q", n, table, said, want, text)
			}
		}
		click := func() { value[bool](b, button+".click() || true") }
		expect(25, "Show all 500")
		click()
		expect(500, "Show the first 25")
		click()
		expect(25, "Show all 500")
		click()
	}
	if !value[bool](b, `document.querySelector('#devices .more').hidden`) {
		b.t.Error("not all devices are shown")
	}
}

// testUpdate checks that a refresh is small and changes the rows in place.
func testUpdate(b *tab) {
	b.t.Helper()
	value[bool](b, `(() => {
		const row = document.querySelector('#devices tbody tr:nth-child(40)');
		row.mark = 'mine';
		row.querySelector('details').open = true;
		row.querySelector('a').focus();
		window.before = [row.getBoundingClientRect().top, document.getElementById('status').textContent];
		return true;
	})()`)
	for again := true; again; again = value[bool](b, `document.getElementById('status').textContent === before[1]`) {
		b.press("r")
		time.Sleep(100 * time.Millisecond)
	}
	if !value[bool](b, `(() => {
		const row = document.querySelector('#devices tbody tr:nth-child(40)');
		// New incidents above it may make the page longer, and the row stays where it is in the
		// window.
		return row.mark === 'mine' && row.querySelector('details').open && scrollY > 0 &&
			Math.abs(row.getBoundingClientRect().top - before[0]) < 2 && document.activeElement === row.querySelector('a');
	})()`) {
		b.t.Error("a refresh replaces a row, closes it, scrolls, or takes the focus away")
	}
	sizes := b.received("/page/rows")
	b.t.Logf("bytes by refresh: %v", sizes)
	if len(sizes) < 2 || slices.Max(sizes) > maxRefresh {
		b.t.Errorf("refreshes take %v bytes, want at most %d", sizes, maxRefresh)
	}
}

// testGone stops the exporter: the page must show this, and for how long.
func testGone(t *testing.T, browser browser, address string, stop func()) {
	b := browser.open(t, address+"#device=gpu-7", view{width: 1400, height: 1000})
	b.await("a dialog", `document.querySelector('dialog').open`)
	b.picture("detail")
	text := value[string](b, `document.querySelector('dialog').textContent`)
	for _, want := range []string{"Device gpu-7", "Absent", "nvml: reads it, and this device is none of its hardware"} {
		if !strings.Contains(text, want) {
			t.Errorf("the details do not have %q: %s", want, text)
		}
	}
	b.press("Escape")
	b.await("without dialog", `!document.querySelector('dialog').open && location.hash === ''`)
	b.expectErrors = true
	stop()
	b.press("r")
	b.await("stale", `/^Stale for \d+ s: /.test(document.getElementById('status').textContent)`)
}

// testWide checks that holders with names as long as the demo's have one line each.
func testWide(t *testing.T, browser browser, address string) {
	b := browser.open(t, address, view{width: 1300, height: 1000})
	b.await("shown", `document.querySelector('#devices td svg') !== null && `+rows("pods")+`.length > 3`)
	b.checkWidth()
	b.picture("wide")
	const tall = `[...document.querySelectorAll('#devices .w > div')].filter((d) => d.offsetHeight > 30)` +
		`.map((d) => d.innerText)`
	if got := value[[]string](b, tall); len(got) > 0 {
		t.Errorf("holders of several lines: %q", got)
	}
}

func testNarrow(t *testing.T, browser browser, address string) {
	b := browser.open(t, address, view{width: 500, height: 1200, dark: true})
	b.await("shown", `document.querySelector('#devices td svg') !== null && `+rows("pods")+`.length > 3`)
	b.await("incidents", rows("incidents")+`.length > 0`)
	b.checkWidth()
	const cut = `[...document.querySelectorAll('main *')].filter((e) => e.offsetParent !== null && ` +
		`e.getBoundingClientRect().right > innerWidth).map((e) => e.textContent.slice(0, 40))`
	if got := value[[]string](b, cut); len(got) > 0 {
		t.Errorf("cut off: %q", got)
	}
	top := value[string](b, `document.getElementById('wrong').innerText`)
	if !strings.Contains(top, "1 unhealthy: gpu-5") {
		t.Errorf("the page begins with %q", top)
	}
	if n := value[int](b, `[...document.querySelectorAll('#devices tbody summary')].filter((s) => `+
		`s.textContent.includes('admin')).length`); n > 0 {
		t.Errorf("%d rows name the monitor that has access to all devices", n)
	}
	b.picture("narrow")
	if first := firstCells(b, "devices")[0]; first != "gpu-5" {
		t.Errorf("the first device is %s, want the unhealthy one", first)
	}
	value[bool](b, `document.querySelector('[data-state=unhealthy]').click() || true`)
	if got := firstCells(b, "devices"); !slices.Equal(got, []string{"gpu-5"}) {
		t.Errorf("the unhealthy devices are %v", got)
	}
	b.press("Escape")
	value[bool](b, `document.querySelector('#devices tbody a').click() || true`)
	b.await("a dialog", `document.querySelector('dialog').open && location.hash.startsWith('#device=')`)
	b.picture("narrow-detail")
	b.checkWidth()
	if value[bool](b, `document.querySelector('dialog').scrollWidth > document.querySelector('dialog').clientWidth`) {
		t.Error("the details are wider than the screen")
	}
	const broken = `[...document.querySelectorAll('dialog .facts td:first-child')].filter((cell) => {
		const text = document.createRange();
		text.selectNodeContents(cell);
		return !cell.textContent.trim().includes(' ') && text.getClientRects().length > 1;
	}).map((cell) => cell.textContent)`
	if got := value[[]string](b, broken); len(got) > 0 {
		t.Errorf("words are broken: %q", got)
	}
}

func testWithoutScript(t *testing.T, browser browser, address string) {
	b := browser.open(t, address, view{width: 1300, height: 1000, noScript: true})
	b.picture("without-script")
	if !value[bool](b, `document.querySelector('noscript meta[http-equiv=refresh]') !== null`) {
		t.Error("without JavaScript the page does not refresh itself")
	}
	if first := firstCells(b, "devices")[0]; first != "gpu-5" || len(firstCells(b, "pods")) == 0 {
		t.Errorf("the first device is %s, want the unhealthy one, and pods", first)
	}
	next := value[string](b, `document.querySelector('#devices tbody a').href`)
	detail := browser.open(t, next, view{width: 1300, height: 1000, noScript: true})
	const heading = "Device gpu.example.com/demo-node/gpu-5"
	if got := value[string](detail, `document.body.textContent`); !strings.Contains(got, heading) {
		t.Errorf("the details are %s", got)
	}
}

// startLarge starts the program on a node of 64 devices and 500 pods.
func startLarge(t *testing.T) (address string, stop func()) {
	node := largenode.Start(t)
	p := live.Launch(t, exec.Command(os.Getenv("DRA_EXPORTER"), node.Flags().Args()...))
	address = "http://" + p.Address + "/"
	live.Await(t, limit, "the node is known", func() error { return live.Get(http.DefaultClient, address+"readyz") })
	return address, func() { p.Stop() }
}

// startDemo starts the exporter on the demo's node.
func startDemo(t *testing.T) (address string) {
	t.Helper()
	listen := live.FreeAddress(t)
	dir := must.Get(os.MkdirTemp("", "demo"))(t) //nolint:usetesting // the path of t.TempDir is too long for a socket
	scenario := simnode.Demo(1, hang)
	node, err := simnode.New(dir, 1, scenario.Devices, simnode.Options{
		Sim: sim.Options{Window: time.Second}, PodsAPI: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	must.Do(t, node.Start())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int)
	t.Cleanup(func() {
		cancel()
		if status := <-ended; status != 0 {
			t.Errorf("the exporter's exit status is %d", status)
		}
		<-ended
		node.Close()
		_ = os.RemoveAll(dir)
		http.DefaultClient.CloseIdleConnections()
	})
	sources := []program.Source{{
		Name: "sim", Help: "Read the simulated devices.",
		New: func(driver.Host) (driver.Source, error) { return node.Source(), nil },
	}}
	go func() {
		args := append(node.Args(), "--web.listen-address="+listen, "--web.last-scrape-timeout=0s", "--log.level=warn",
			"--stalled.after="+simnode.StalledAfter(hang).String())
		ended <- program.Run(ctx, args, sources, io.Discard, os.Stderr)
	}()
	go func() {
		_ = scenario.Run(ctx, node) // it ends with ctx
		ended <- 0
	}()
	address = "http://" + listen + "/"
	live.Await(t, limit, "the exporter is ready", func() error { return live.Get(http.DefaultClient, address+"readyz") })
	return address
}
