package page

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/simnode"
)

// startGateway starts a gateway for the exporter at an address. The user lead may see everything,
// and alice may get the claims of the namespace research.
func startGateway(t *testing.T, exporter string) (api *kubetest.Server, gateway *live.Program) {
	api, kubeconfig := kubetest.New(t)
	api.Allow("lead", func(authorizationv1.SubjectAccessReviewSpec) bool { return true })
	api.Allow("alice", func(s authorizationv1.SubjectAccessReviewSpec) bool {
		return s.ResourceAttributes != nil && s.ResourceAttributes.Namespace == "research"
	})
	addNode(t, api, simnode.Name, exporter)
	return api, live.Launch(t, exec.Command(os.Getenv("DRA_EXPORTER"), "gateway", "--kubeconfig="+kubeconfig,
		"--exporter.namespace=dra", "--proxy.loopback", "--web.listen-address=127.0.0.1:0"))
}

// addNode adds an exporter of a node to the API server.
func addNode(t *testing.T, api *kubetest.Server, node, exporter string) {
	t.Helper()
	at := must.Get(url.Parse(exporter))(t)
	host, port, err := net.SplitHostPort(at.Host)
	if err != nil {
		t.Fatal(err)
	}
	api.Put(kubetest.Endpoints, fmt.Appendf(nil, `{"metadata":{"namespace":"dra","name":%q,"labels":
		{"kubernetes.io/service-name":"dra-exporter"}},"addressType":"IPv4","ports":[{"name":"metrics","port":%s}],
		"endpoints":[{"nodeName":%q,"addresses":[%q],"targetRef":{"kind":"Pod","name":"p"}}]}`, node, port, node, host))
}

// testGateway opens the page of the cluster: the demo's node, a node without claims, a node that
// changes, and a node that does not answer. Problems come first. Rows change in place, and rows
// that the user opened, marked or filtered stay so.
func testGateway(t *testing.T, browser browser, demo string) {
	api, gateway := startGateway(t, demo)
	var claims atomic.Int64
	claims.Store(1)
	fake := func(name string, summary func() string) {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, summary())
		}))
		t.Cleanup(server.Close)
		addNode(t, api, name, server.URL)
	}
	fake("a-free", func() string { return `{"node":"a-free","devices":{"free":8},"claims":[],"incidents":[]}` })
	fake("b-changes", func() string {
		var of []string
		for i := range claims.Load() {
			of = append(of, fmt.Sprintf(`{"namespace":"team-long-name","name":"pretraining-of-a-large-model-%d-gpus",`+
				`"state":"quiet","devices":4,"pods":["pretraining-of-a-large-model-worker-%d"]}`, i, i))
		}
		return fmt.Sprintf(`{"node":"b-changes","devices":{"quiet":4,"active":4},"claims":[%s],"incidents":[]}`,
			strings.Join(of, ","))
	})
	fake("c-broken", func() string { return `{}` + "<" })

	address := "http://" + gateway.Address + "/"
	b := browser.open(t, address, view{width: 500, height: 1000, user: "lead"})
	row := func(name string) string { return fmt.Sprintf(`document.querySelector('tr[data-node=%q]')`, name) }
	b.await("all nodes", `document.querySelectorAll('#nodes tr').length === 4 && `+
		row(simnode.Name)+`.textContent.includes('1 unhealthy') && `+row("c-broken")+`.textContent.includes('answer')`)
	b.picture("cluster-narrow")
	b.checkWidth()
	const names = `[...document.querySelectorAll('#nodes tr:not([hidden])')].map((r) => r.dataset.node)`
	want := []string{simnode.Name, "c-broken", "b-changes", "a-free"}
	if got := value[[]string](b, names); !slices.Equal(got, want) {
		t.Errorf("the nodes are %v, want %v", got, want)
	}
	if first := value[string](b, row(simnode.Name)+`.cells[1].innerText`); !strings.HasPrefix(first, "1 unhealthy") {
		t.Errorf("the devices of the demo's node are %q: the unhealthy one is not first", first)
	}

	value[bool](b, `(() => {
		`+row("a-free")+`.mark = 'mine';
		`+row("b-changes")+`.querySelector('details').open = true;
		const filter = document.getElementById('filter');
		filter.focus();
		return true;
	})()`)
	b.write("TEAM-LONG quiet")
	b.await("filtered", `JSON.stringify(`+names+`) === '["b-changes"]'`)
	b.picture("cluster-filtered")
	claims.Store(3)
	b.await("the new claims", row("b-changes")+`.textContent.includes('model-2-gpus')`)
	for what, is := range map[string]string{
		"the list of claims is closed":          row("b-changes") + `.querySelector('details').open`,
		"a row that did not change is replaced": row("a-free") + `.mark === 'mine'`,
		"the filter is forgotten":               `JSON.stringify(` + names + `) === '["b-changes"]'`,
		"the focus is lost":                     `document.activeElement.id === 'filter'`,
	} {
		if !value[bool](b, is) {
			t.Errorf("after a refresh %s", what)
		}
	}
	wide := browser.open(t, address, view{width: 1300, height: 1000, user: "lead", dark: true})
	wide.await("all nodes", `document.querySelectorAll('#nodes tr').length === 4`)
	wide.picture("cluster-wide")
	wide.checkWidth()
	plain := browser.open(t, address, view{width: 1300, height: 1000, user: "lead", noScript: true})
	if !value[bool](plain, `document.querySelectorAll('#nodes tr').length === 4 &&
		document.getElementById('controls').hidden && document.querySelector('noscript meta[http-equiv=refresh]') !== null`) {
		t.Error("without JavaScript the page has not all nodes, has a filter, or does not refresh itself")
	}

	b.expectErrors, wide.expectErrors = true, true
	gateway.Stop()
	b.await("stale", `/^Stale for \d+ s: /.test(document.getElementById('status').textContent)`)
	if got := value[int](b, `document.querySelectorAll('#nodes tr').length`); got != 4 {
		t.Errorf("%d nodes are shown after the gateway ended", got)
	}
}
