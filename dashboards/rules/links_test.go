package rules

import (
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Links of alerts are absolute: those to what has no address are left out.
func TestLinks(t *testing.T) {
	for _, test := range []struct{ grafana, page string }{
		{}, {grafana: "https://grafana.example.com/"}, {page: "https://dra.example.com/{{ $labels.node }}"},
	} {
		o := Defaults()
		o.Grafana, o.Page = test.grafana, test.page
		groups := must.Get(Groups(o, newCatalog(t)))(t)
		for _, g := range groups {
			for _, r := range g.Rules {
				for name, begin := range map[string]string{"dashboard_url": test.grafana, "page_url": test.page} {
					link, has := r.Annotations[name]
					if has && (begin == "" || !strings.HasPrefix(link, strings.TrimSuffix(begin, "/")+"/")) {
						t.Errorf("%s, with %+v: %s is %q", r.Alert, test, name, link)
					}
					if r.Alert == "DRAClaimStalled" && has != (begin != "") {
						t.Errorf("with %+v, it has %s: %v", test, name, has)
					}
				}
			}
		}
	}
	o := Defaults()
	if o.Gateway = "dra.example.com"; o.Check() == nil {
		t.Error("an address of the gateway that is not absolute is accepted")
	}
	o = Defaults()
	if o.Page = "demo-node:10985"; o.Check() == nil {
		t.Error("an address that is not absolute is accepted")
	}
}

// With the gateway's address, links lead to it, and have the node.
func TestLinksByGateway(t *testing.T) {
	o := Defaults()
	o.Gateway, o.Page = "https://dra.example.com/", "https://other.example.com"
	groups := must.Get(Groups(o, newCatalog(t)))(t)
	want := map[string]string{
		"DRAClaimStalled": "https://dra.example.com/claim/{{ $labels.namespace | urlquery }}/" +
			"{{ $labels.resourceclaim_name | urlquery }}?node={{ $labels.node | urlquery }}",
		"DRADeviceDown": "https://dra.example.com/device/{{ $labels.driver | urlquery }}/{{ $labels.pool | urlquery }}/" +
			"{{ $labels.device | urlquery }}?node={{ $labels.node | urlquery }}",
		"DRAExporterStale": "https://dra.example.com/node/{{ $labels.node | urlquery }}/",
	}
	for _, g := range groups {
		for _, r := range g.Rules {
			link := r.Annotations["page_url"]
			if exact, known := want[r.Alert]; known && link != exact {
				t.Errorf("%s: %s, want %s", r.Alert, link, exact)
			}
			delete(want, r.Alert)
			expect.That(t, link == "" || strings.HasPrefix(link, "https://dra.example.com/") && strings.Contains(link, onNode),
				"%s: %s", r.Alert, link)
		}
	}
	expect.That(t, len(want) == 0, "there are no alerts %v", want)
}
