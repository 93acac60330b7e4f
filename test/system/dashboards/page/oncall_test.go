package page

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

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
	b.await("stalled", `document.querySelectorAll('td .bad[title^="busy, and does nothing"]').length === 3`)
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
			expect.That(t, strings.Contains(got, text), "%s: no %q in %s", what, text, got)
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
	expect.That(t, value[bool](b, `document.querySelector('dialog svg line') !== null`),
		"the charts do not mark when it happened")
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
	must.That(t, len(out) == 4 && out["DRAClaimStalled"] != "",
		"the links are %v, want those of a claim, a pod, a device and a node", out)
	return out
}
