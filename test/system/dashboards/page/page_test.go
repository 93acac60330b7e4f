// Package page opens the exporter's page in headless Chromium: on a large node, on the demo's node
// on a narrow screen, without JavaScript, and a hostile node's one through the gateway.
//
// $DRA_EXPORTER is the path of the program; chromium is Debian's.
package page

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/program"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/sim"
	"github.com/dra-exporter/dra-exporter/test/simnode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// maxRefresh is the limit of the size of a refresh of a large node on the network, in bytes.
const maxRefresh = 48 << 10

func testLarge(t *testing.T, browser browser, address string) {
	b := browser.open(t, address, view{width: 1400, height: 1000})
	b.await("shown", `document.querySelector('#pods small').textContent === '500'`)
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
	sizes := b.received("/")
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

// hanging is the claim of the demo's job that hangs.
const hanging = "research/finetune-0-rank-0-gpu"

// testFiredAlert waits until the alert about the claim that hangs fires in a real Prometheus, by
// the shipped rules with the gateway's address. It opens the link of the alert as users do who
// logged in at a proxy. The gateway leads to the claim on the page of its node, or shows only the
// claim to users without further rights.
func testFiredAlert(t *testing.T, browser browser, demo string) {
	api, gateway := startGateway(t, demo)
	link := firedLink(t, "http://"+gateway.Address, strings.Trim(strings.TrimPrefix(demo, "http://"), "/"))
	t.Log(link)
	as := func(user string) view { return view{width: 1300, height: 1000, user: user} }
	shows := func(b *tab) {
		t.Helper()
		b.await("the claim", `document.querySelector('dialog h2')?.textContent === 'Claim `+hanging+`'`)
		b.await("the rows of its node", `location.pathname === '/node/`+simnode.Name+`/' && `+rows("devices")+`.length > 3`)
	}
	// The API server does not know the claim: it is gone, and the link has the node.
	gone := browser.open(t, link, as("lead"))
	shows(gone)
	gone.picture("alert")
	value[bool](gone, `document.querySelector('dialog a[href^="#incident="]').click() || true`)
	gone.await("the incident", `document.querySelector('dialog h2')?.textContent.
		includes('a claim is busy and does nothing')`)

	namespace, name, _ := strings.Cut(hanging, "/")
	api.Put(kubetest.Claims, fmt.Appendf(nil, `{"metadata":{"namespace":%q,"name":%q},"status":{"allocation":{
		"nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":[%q]}]}]}}}}`,
		namespace, name, simnode.Name))
	withoutNode, _, _ := strings.Cut(link, "?")
	shows(browser.open(t, withoutNode, as("lead")))

	own := browser.open(t, link, as("alice"))
	own.await("the claim alone", `document.querySelector('main.detail h2')?.textContent === 'Claim `+hanging+`'`)
	text := value[string](own, `document.body.innerText`)
	if !strings.Contains(text, "claim_stalled") || strings.Contains(text, "team-vision") {
		t.Errorf("the page of the claim has\n%s", text)
	}
	own.checkWidth()
	own.picture("alert-own")
}

// firedLink starts a Prometheus that scrapes an exporter, and returns the page_url of the alert
// about the claim that hangs once it fires.
func firedLink(t *testing.T, gateway, exporter string) (link string) {
	t.Helper()
	const config = `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
- job_name: dra-exporter
  honor_labels: true
  static_configs: [{targets: [%s], labels: {node: %s}}]
`
	prometheus := live.StartPrometheus(t, live.PrometheusOptions{
		Config: fmt.Sprintf(config, exporter, simnode.Name), Files: map[string]string{"rules.yaml": shortRules(t, gateway)},
	})
	live.Await(t, limit, "DRAClaimStalled fires", func() error {
		var data struct {
			Alerts []struct {
				State               string
				Labels, Annotations map[string]string
			}
		}
		if err := prometheus.Get(t.Context(), "/api/v1/alerts", nil, &data); err != nil {
			return err
		}
		for _, a := range data.Alerts {
			if a.Labels["alertname"] == "DRAClaimStalled" && a.State == "firing" &&
				a.Labels["namespace"]+"/"+a.Labels["resourceclaim_name"] == hanging {
				link = a.Annotations["page_url"]
				return nil
			}
		}
		return fmt.Errorf("there are %d other alerts", len(data.Alerts))
	})
	return link
}

// shortRules are the rules of a gateway, whose alerts fire soon.
func shortRules(t *testing.T, gateway string) string {
	t.Helper()
	catalog := query.NewCatalog()
	o := rules.Defaults()
	o.Gateway, o.For = gateway, time.Second
	groups := must.Get(rules.Groups(o, catalog))(t)
	content := must.Get(rules.File(groups))(t)
	return string(content)
}

// hang is the time at which a job of the demo hangs.
const hang = 30 * time.Second

// testOnCall follows the story in exporter/ONCALL.md: from the link of the alert to the claim, from
// there to the incident, and to the pod that it hit. Then it checks for each kind of alert that its
// link leads to a page with content.
func testOnCall(t *testing.T, browser browser, address string) {
	namespace, name, _ := strings.Cut(hanging, "/")
	labels := map[string]string{
		"namespace": namespace, "resourceclaim_name": name, "pod": "finetune-0-rank-0",
		"driver": "gpu.example.com", "pool": "demo-node", "device": "gpu-3",
	}
	links := pageLinks(t, labels)
	b := browser.open(t, address, view{width: 1300, height: 1000})
	b.await("stalled", `document.querySelectorAll(':is(td.bad, td .bad)[title^="busy, and does nothing"]').length === 3`)
	b.await("the incident", `[...document.querySelectorAll('#incidents tr')].some((tr) =>
		tr.textContent.includes('open') && tr.textContent.includes('research/finetune-0-rank-0') &&
		tr.querySelector('svg polyline') !== null)`)
	if first := firstCells(b, "devices")[:2]; first[0] != "gpu-5" || first[1] != "gpu-3" {
		t.Errorf("the first devices are %v, want the unhealthy one and the stalled one", first)
	}
	b = browser.open(t, strings.TrimSuffix(address, "/")+links["DRAClaimStalled"], view{width: 1300, height: 1000})
	shows := func(what string, texts ...string) {
		t.Helper()
		b.await("the dialog", `document.querySelector('dialog h2')?.textContent === '`+what+`'`)
		got := value[string](b, `document.querySelector('dialog').textContent`)
		for _, text := range texts {
			if !strings.Contains(got, text) {
				t.Errorf("%s: no %q in %s", what, text, got)
			}
		}
		b.picture(strings.NewReplacer(" ", "-", "/", "-", ":", "").Replace(what))
	}
	click := func(kind string) {
		t.Helper()
		if !value[bool](b, `(() => {
			const a = document.querySelector('dialog a[href^="#`+kind+`="]');
			a?.click();
			return Boolean(a);
		})()`) {
			t.Fatalf("there is no link to a %s", kind)
		}
	}
	shows("Claim research/finetune-0-rank-0-gpu", "busy, and does nothing, for all that is measured: power")
	click("incident")
	shows("gpu-3: a claim is busy and does nothing (power, tensor, fp64, fp32, fp16, int, sm, memory traffic, media, "+
		"pcie, cpu, storage, page faults, host memory)", "Held by", "utilization", "power")
	if !value[bool](b, `document.querySelector('dialog svg line') !== null`) {
		t.Error("the charts do not mark when it happened")
	}
	click("pod")
	shows("Pod research/finetune-0-rank-0", "Job finetune-0", "through the claim", "Values of the pod")

	for alert, link := range links {
		of := browser.open(t, strings.TrimSuffix(address, "/")+link, view{width: 1300, height: 1000})
		of.await(alert+": "+link, `document.getElementById('devices') !== null && (location.hash === '' ||
			document.querySelector('dialog h3') !== null)`)
	}
}

// pageLinks returns the page_url of DRAClaimStalled, and of one alert for each other link, by the
// alert, filled with the labels of an alert.
func pageLinks(t *testing.T, labels map[string]string) map[string]string {
	t.Helper()
	catalog := query.NewCatalog()
	const page = "http://page"
	o := rules.Defaults()
	o.Page = page
	groups := must.Get(rules.Groups(o, catalog))(t)
	label := regexp.MustCompile(`{{ \$labels\.(\w+) \| urlquery }}`)
	byLink := map[string]string{}
	for _, g := range groups {
		for _, r := range g.Rules {
			link := strings.TrimPrefix(r.Annotations["page_url"], page)
			if link != "" && (byLink[link] == "" || r.Alert == "DRAClaimStalled") {
				byLink[link] = r.Alert
			}
		}
	}
	out := map[string]string{}
	for link, alert := range byLink {
		out[alert] = label.ReplaceAllStringFunc(link, func(of string) string {
			return url.QueryEscape(labels[label.FindStringSubmatch(of)[1]])
		})
	}
	if len(out) != 4 || out["DRAClaimStalled"] == "" {
		t.Fatalf("the links are %v, want those of a claim, a pod, a device and a node", out)
	}
	return out
}
