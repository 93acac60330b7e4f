package page

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/simnode"
)

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
	expect.That(t, strings.Contains(text, "claim_stalled") && !strings.Contains(text, "team-vision"),
		"the page of the claim has\n%s", text)
	own.checkWidth()
	own.picture("alert-own")
}

// firedLink starts a Prometheus that scrapes an exporter, and returns the page_url of the alert
// about the claim that hangs once it fires.
func firedLink(t *testing.T, gateway, exporter string) (link string) {
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
	catalog := query.NewCatalog()
	o := rules.Defaults()
	o.Gateway, o.For = gateway, time.Second
	groups := must.Get(rules.Groups(o, catalog))(t)
	content := must.Get(rules.File(groups))(t)
	return string(content)
}
