package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/exporter/web/access"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestMain(m *testing.M) { testmain.Main(m) }

// own is a transport with the gateway's own token.
type own struct{ *http.Transport }

func (o own) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer own")
	return o.Transport.RoundTrip(r)
}

// grafana is the address of the dashboards.
const grafana = "https://grafana.example.com/at"

// cluster is a gateway, its API server, and stand-ins for exporters.
type cluster struct {
	*testing.T
	api *kubetest.Server
	url string

	mu    sync.Mutex
	asked []*http.Request // of all exporters, and of other servers
}

// root may do everything; alice may get the claims of team-a, nobody nothing.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	api, kubeconfig := kubetest.New(t)
	c := &cluster{T: t, api: api}
	api.Allow("root", func(authorizationv1.SubjectAccessReviewSpec) bool { return true })
	api.Allow("nobody", func(authorizationv1.SubjectAccessReviewSpec) bool { return false })
	api.Allow("alice", func(s authorizationv1.SubjectAccessReviewSpec) bool {
		of := s.ResourceAttributes
		return of != nil && *of == authorizationv1.ResourceAttributes{
			Namespace: "team-a", Verb: "get", Group: "resource.k8s.io", Resource: "resourceclaims",
		}
	})
	client := must.Get(kube.NewClient(kubeconfig, "test"))(t)
	transport := own{&http.Transport{}}
	t.Cleanup(transport.CloseIdleConnections)
	users := access.NewUsers(access.Config{
		API: client, Limited: func() {}, Report: func(time.Duration, error) {},
	}, access.Proxy{Loopback: true})
	log := slog.New(slog.DiscardHandler)
	server := web.NewServer(web.ServerConfig{Log: log.Handler(), Handler: New(Config{
		Find: kube.NewFinder(client), Users: users, Transport: transport, Scheme: "http",
		Namespace: "dra", Service: "dra-exporter", Port: "metrics", MetricsPath: "/metrics", Grafana: grafana,
		Log: log, Now: time.Now,
	})})
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	c.url = "http://" + listener.Addr().String()
	return c
}

// serve starts a server that records all requests, and returns its address.
func (c *cluster) serve(answer http.HandlerFunc) string {
	c.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.asked = append(c.asked, r)
		c.mu.Unlock()
		answer(w, r)
	}))
	c.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// node adds an exporter of a node.
func (c *cluster) node(name string, answer http.HandlerFunc) (address string) {
	c.Helper()
	address = c.serve(answer)
	c.endpoint(name, "dra-exporter", address, `{"kind":"Pod","name":"p"}`)
	return address
}

func (c *cluster) endpoint(node, service, address, target string) {
	c.Helper()
	host, port, err := net.SplitHostPort(address)
	must.Do(c, err)
	c.api.Put(kubetest.Endpoints, fmt.Appendf(nil, `{"metadata":{"namespace":"dra","name":"%s-%s",
		"labels":{"kubernetes.io/service-name":%q}},"addressType":"IPv4","ports":[{"name":"metrics","port":%s}],
		"endpoints":[{"addresses":[%q],"nodeName":%q,"targetRef":%s}]}`, service, node, service, port, host, node, target))
}

// requests returns the requests since the last call.
func (c *cluster) requests() []*http.Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.asked
	c.asked = nil
	return out
}

// answered is an answer without its body.
type answered struct {
	StatusCode int
	Status     string
	Header     http.Header
}

// get asks the gateway without following redirects.
func (c *cluster) get(user, path string, headers ...string) (answered, string) {
	c.Helper()
	r, err := http.NewRequestWithContext(c.Context(), http.MethodGet, c.url+path, http.NoBody)
	must.Do(c, err)
	if user != "" {
		r.Header.Set("Authorization", "Bearer "+user)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true}
	answer, err := transport.RoundTrip(r)
	must.That(c, err == nil, "%s: %v", path, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must.That(c, err == nil, "%s: %v", path, err)
	return answered{answer.StatusCode, answer.Status, answer.Header}, string(body)
}

// raw sends a request as it is written, and returns the answer.
func (c *cluster) raw(request string) string {
	c.Helper()
	connection, err := (&net.Dialer{}).DialContext(c.Context(), "tcp", strings.TrimPrefix(c.url, "http://"))
	must.Do(c, err)
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(connection, strings.ReplaceAll(request, "\n", "\r\n"))
	answer, err := io.ReadAll(bufio.NewReader(connection))
	must.That(c, err == nil || len(answer) != 0, "%q: %v", request, err)
	return string(answer)
}

func text(kind, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, body)
	}
}

// Requests go only to the exporters of the Service, on paths that exporters have, whatever a user
// requests.
func TestReachesExportersAlone(t *testing.T) {
	c := newCluster(t)
	node := c.node("n1", text("application/json", "{}"))
	none := c.serve(text("text/plain", "SECRET"))
	c.endpoint("other", "another-service", none, `{"kind":"Pod"}`)
	c.endpoint("vm", "dra-exporter", none, `{"kind":"VirtualMachine"}`)
	_, port, _ := net.SplitHostPort(none)
	c.api.Put(kubetest.Endpoints, []byte(`{"metadata":{"namespace":"dra","name":"fqdn",
		"labels":{"kubernetes.io/service-name":"dra-exporter"}},"addressType":"FQDN","ports":[
		{"name":"metrics","port":`+port+`}],
		"endpoints":[{"addresses":["localhost"],"nodeName":"named","targetRef":{"kind":"Pod"}}]}`))
	const last = "Authorization: Bearer root\nConnection: close\n\n"
	for _, path := range []string{
		"http://NONE/metrics", "/node/NONE/metrics", "/node/n1@NONE/metrics", "/node/n1%40NONE/metrics",
		"/node/NONE%2f..%2fn1/metrics", "/node/n1/http://NONE/", "/node/n1//NONE/metrics", "/node/n1/%2f%2fNONE/metrics",
		"/node/n1/../../NONE/metrics", "/node/n1/..%2f..%2fmetrics", "/node/n1/%2e%2e/metrics",
		"/node/n1/page/../debug/pprof/",
		"/node/n1/debug/pprof/", "/node/n1/debug/pprof/profile?seconds=1", "/node/n1/page%2f..%2fdebug/pprof/cmdline",
		"/node/n1/metrics%00", "/node/n1/metrics%23", "/node/n1/metrics%3fx", "/node/n1/healthz",
		"/node/n1/api/v1/../../metrics",
		"/node/n1/api/v2/snapshot", "/node/n1/;@NONE/", "/node/other/metrics", "/node/vm/metrics", "/node/named/metrics",
		"/node/N1/metrics", "/node/n1./metrics", "/node/localhost/metrics", "/node/127.0.0.1/metrics", "/node/%00/metrics",
		"/node/kubernetes.default.svc/metrics", "/claim/team-a/x?node=NONE", "/claim/team-a/..%2f..%2fx?node=other",
		"/pod/team-a/x?node=localhost", "/device/a/b/c?node=NONE", "/device/a/b/..%2f..%2fc", "/device/http://NONE/x",
		"//NONE/metrics", "/\\NONE/metrics", "/node/n1\\@NONE/metrics", "/node//metrics", "/node/../metrics", "*",
	} {
		request := strings.ReplaceAll("GET "+path+" HTTP/1.1\nHost: NONE\nX-Forwarded-Host: NONE\n"+
			"X-Original-URL: http://NONE/\nForwarded: host=NONE\n"+last, "NONE", none)
		answer := c.raw(request)
		expect.That(t, !strings.Contains(answer, "SECRET") && !strings.HasPrefix(answer, "HTTP/1.1 200"),
			"%s: %s", path, answer)
		for _, r := range c.requests() {
			expect.That(t, r.Host != none && strings.HasPrefix(path, "/node/n1/"),
				"%s asked %s of %s", path, r.RequestURI, r.Host)
		}
	}
	for _, method := range []string{"CONNECT", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "PROPFIND"} {
		for _, at := range []string{"/node/n1/metrics", none, "http://" + none + "/"} {
			answer := c.raw(method + " " + at + " HTTP/1.1\nHost: " + none + "\n" + last)
			expect.That(t, strings.HasPrefix(answer, "HTTP/1.1 40"), "%s %s: %s", method, at, answer)
		}
	}
	if asked := c.requests(); len(asked) > 0 {
		t.Errorf("other methods asked %s", asked[0].RequestURI)
	}
	// Headers that claim another origin of a request have no effect.
	for path, want := range map[string]string{
		"/node/n1/metrics": "HTTP/1.1 200", "/claim/team-a/x?node=n1": "HTTP/1.1 302", "/node/n1": "HTTP/1.1 302",
	} {
		answer := c.raw("GET " + path + " HTTP/1.1\nHost: " + none + "\nX-Forwarded-Host: " + none +
			"\nX-Forwarded-Prefix: //" + none + "\nForwarded: host=" + none + "\n" + last)
		expect.That(t, strings.HasPrefix(answer, want) && !strings.Contains(answer, none), "%s: %s", path, answer)
		for _, r := range c.requests() {
			expect.Is(t, r.Host, node, "%s asked %s of", path, r.RequestURI)
		}
	}
	for _, path := range []string{
		"/metrics", "/", "/page/rows", "/page/detail?device=a%2fb", "/api/v1/snapshot", "/page%2frows",
	} {
		answer, _ := c.get("root", "/node/n1"+path)
		asked := c.requests()
		expect.That(t, answer.StatusCode == http.StatusOK && len(asked) == 1 && asked[0].Host == node,
			"%s: %s, %d requests", path, answer.Status, len(asked))
	}
}

// The user's headers are not forwarded; the gateway uses its own token.
func TestOwnHeadersAlone(t *testing.T) {
	c := newCluster(t)
	c.node("n1", text("application/json", "{}"))
	answer := c.raw("GET /node/n1/page/rows?device=x HTTP/1.1\nHost: a\nAuthorization: Bearer root\nCookie: a=b\n" +
		"X-Forwarded-User: root\nX-Forwarded-For: 1.2.3.4\nUpgrade: websocket\nConnection: upgrade\nTe: trailers\n" +
		"Accept: text/html\nIf-None-Match: \"x\"\nImpersonate-User: admin\nUser-Agent: me\nContent-Length: 3\n\nabc" +
		"GET / HTTP/1.1\nHost: a\nConnection: close\n\n")
	must.That(t, strings.HasPrefix(answer, "HTTP/1.1 200"), "%v", answer)
	asked := c.requests()
	must.That(t, len(asked) == 1, "%d requests", len(asked))
	for name, values := range asked[0].Header {
		want := map[string]string{
			"Authorization": "Bearer own", "Accept": "text/html", "If-None-Match": `"x"`, "Accept-Encoding": "gzip",
		}[name]
		expect.That(t, values[0] == want, "%s: %q was sent", name, values)
	}
	expect.That(t, asked[0].ContentLength == 0 && asked[0].RequestURI == "/page/rows?device=x",
		"%s with %d bytes", asked[0].RequestURI, asked[0].ContentLength)
}

// An exporter that an attacker controls can't make the browser execute anything, set a header, or
// redirect.
func TestAnswersOfNodes(t *testing.T) {
	c := newCluster(t)
	none := c.serve(text("text/plain", "SECRET"))
	var answer http.HandlerFunc
	c.node("n1", func(w http.ResponseWriter, r *http.Request) { answer(w, r) })
	const policy = "default-src 'none'; script-src 'self'"
	const evil = `{"time":"<script>evil()</script>","devices":[{"model":"<script>evil()</script>","holders":[{}]}]}`
	for name, of := range map[string]struct {
		path   string
		answer http.HandlerFunc
		want   int
		body   string
	}{
		"page": {"/", text("text/plain; charset=utf-7", evil), 200, "&lt;script&gt;evil"},
		"details": {
			"/page/detail", text("text/html", `{"title":"<script>evil()</script>"}`), 200, "&lt;script&gt;evil",
		},
		"HTML":     {"/metrics", text("text/html", evil), 502, ""},
		"redirect": {"/", http.RedirectHandler("http://"+none+"/", http.StatusFound).ServeHTTP, 502, ""},
		"refusal": {"/", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
		}, 502, "own token"},
		"script":  {"/api/v1/snapshot", text("text/javascript", "alert(1)"), 502, ""},
		"no type": {"/", func(w http.ResponseWriter, _ *http.Request) { w.Header()["Content-Type"] = nil }, 502, ""},
		"style":   {"/metrics", text("text/css", "*{}"), 502, ""},
		"image":   {"/metrics", text("image/svg+xml", "<svg/>"), 502, ""},
		"two types": {"/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = []string{"text/html", "text/javascript"}
		}, 502, ""},
		"own script": {"/page/script.js", text("text/javascript", "alert(1)"), 200, "The script of the pages"},
		"own style":  {"/page/style.css", text("text/css", "*{}"), 200, "color-scheme"},
		"switched": {"/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Upgrade", "h2c")
			w.WriteHeader(http.StatusSwitchingProtocols)
		}, 502, ""},
		"no snapshot": {"/api/v1/snapshot", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusServiceUnavailable)
		}, 503, ""},
		"headers": {"/metrics", func(w http.ResponseWriter, _ *http.Request) {
			for _, h := range []string{
				"Set-Cookie", "Link", "Refresh", "Location", "Content-Location", "Access-Control-Allow-Origin", "Clear-Site-Data",
				"Service-Worker-Allowed", "Content-Security-Policy", "Strict-Transport-Security", "Alt-Svc", "Sourcemap",
				"Www-Authenticate", "X-Content-Type-Options", "Content-Disposition",
			} {
				w.Header().Set(h, "evil")
			}
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusEarlyHints)
			_, _ = io.WriteString(w, "x")
		}, 200, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			answer = of.answer
			got, body := c.get("root", "/node/n1"+of.path)
			if got.StatusCode != of.want || !strings.Contains(body, of.body) || strings.Contains(body, "alert") ||
				strings.Contains(body, "<script>") {
				t.Errorf("%s %q", got.Status, body)
			}
			if csp := got.Header.Values("Content-Security-Policy"); len(csp) != 1 || !strings.HasPrefix(csp[0], policy) ||
				got.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("policy %q", csp)
			}
			for header, values := range got.Header {
				expect.That(t, !slices.Contains(values, "evil"), "%s: %q is set", header, values)
			}
			if kind := got.Header.Get("Content-Type"); name == "page" && kind != "text/html; charset=utf-8" {
				t.Errorf("type %q", kind)
			}
		})
	}
	for _, r := range c.requests() {
		expect.That(t, r.Host != none, "%s was asked", none)
	}
}

// The pages of a node are those that its exporter serves itself.
func TestPagesOfNodes(t *testing.T) {
	h := exportertest.NewNode(t)
	exportertest.Play(h)
	for i := range h.Last.Claims {
		if key := h.Last.Claims[i].HolderKey; key.Name == "ten" {
			h.Last.Stalled = map[*book.HolderKey]stall.Verdict{key: {Stalled: []stall.Signal{stall.Power}}}
		}
	}
	r := recorder.New(recorder.Config{Interval: time.Second})
	r.Record(h.Last.Snapshot)
	exporter := web.NewHandler(web.Config{
		Latest: func() *exposition.Snapshot { return h.Last }, Node: "n1", MetricsPath: "/metrics", Version: "v1",
		Recorder: r, Scrapes: &web.Scrapes{}, QuietAfter: 30 * time.Second, Log: slog.New(slog.DiscardHandler),
		Sources: func() []present.Source { return []present.Source{{Name: "nvml", Down: driver.ReasonDriverMismatch}} },
	})
	c := newCluster(t)
	c.node("n1", exporter.ServeHTTP)
	for path, has := range map[string]string{
		"/": ">stalled<", "/page/detail?device=gpu-4": "gpu-4", "/page/detail?claim=team/ten": "Values of the claim",
		"/page/detail?pod=team/x": "nothing of that name",
	} {
		own := httptest.NewRecorder()
		exporter.ServeHTTP(own, httptest.NewRequest(http.MethodGet, "http://127.0.0.1"+path, http.NoBody))
		_, body := c.get("root", "/node/n1"+path)
		diff := cmp.Diff(own.Body.String(), body)
		expect.That(t, diff == "" && strings.Contains(body, has), "%s (-the exporter's +the gateway's):\n%s", path, diff)
	}
}

// Nodes of objects are found through the API server; links to deleted objects have the node.
func TestFinds(t *testing.T) {
	c := newCluster(t)
	for _, n := range []string{"n1", "n2"} {
		c.node(n, text("text/html", n))
	}
	put := func(resource, object string) { c.api.Put(resource, []byte(object)) }
	put(kubetest.Claims, `{"metadata":{"namespace":"team-a","name":"local"},"status":{"allocation":{"nodeSelector":
		{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["n1"]}]}]}}}}`)
	put(kubetest.Claims, `{"metadata":{"namespace":"team-a","name":"shared"},"status":{"reservedFor":[
		{"resource":"pods","name":"p2"},{"resource":"pods","name":"p1"}]}}`)
	put(kubetest.Claims, `{"metadata":{"namespace":"team-a","name":"waiting"}}`)
	put(kubetest.Pods, `{"metadata":{"namespace":"team-a","name":"p1"},"spec":{"nodeName":"n1"}}`)
	put(kubetest.Pods, `{"metadata":{"namespace":"team-a","name":"p2"},"spec":{"nodeName":"n2"}}`)
	put(kubetest.Pods, `{"metadata":{"namespace":"team-a","name":"lost"},"spec":{"nodeName":"n9"}}`)
	for path, want := range map[string]string{
		"/claim/team-a/local":                               "../../node/n1/#claim=team-a/local",
		"/claim/team-a/local?node=n2":                       "../../node/n1/#claim=team-a/local",
		"/claim/team-a/shared":                              "../../node/n1/#claim=team-a/shared",
		"/claim/team-a/shared?node=n2":                      "../../node/n2/#claim=team-a/shared",
		"/claim/team-a/gone?node=n2":                        "../../node/n2/#claim=team-a/gone",
		"/pod/team-a/p2":                                    "../../node/n2/#pod=team-a/p2",
		"/device/gpu.example.com/n1/gpu-0":                  "../../../node/n1/#device=gpu.example.com/n1/gpu-0",
		"/device/gpu.example.com/rack/two/gpu-0?node=n2":    "../../../../node/n2/#device=gpu.example.com/rack/two/gpu-0",
		"/device/gpu.example.com/n1/gpu-7?node=n2":          "../../../node/n1/#device=gpu.example.com/n1/gpu-7",
		"/device/gpu.example.com/rack/two/gpu-0":            "404",
		"/node/n1":                                          "../node/n1/",
		"/claim/team-a/gone":                                "404",
		"/claim/team-a/waiting":                             "404",
		"/claim/team-a/gone?node=n9":                        "404",
		"/pod/team-a/lost":                                  "404",
		"/device/gpu.example.com/n1":                        "404",
		"/claim/team-a/a%2fb?node=n1":                       "404",
		"/claim/team-a/gone?node=" + "n1%0d%0aSet-Cookie:x": "404",
	} {
		got, _ := c.get("root", path)
		if location := got.Header.Get("Location"); location != want && fmt.Sprint(got.StatusCode) != want {
			t.Errorf("%s: %s %q, want %s", path, got.Status, location, want)
		}
	}
	// Without the API server, the node of the link is believed.
	c.api.Fail(func(resource string, _ bool) kubetest.Fault {
		if resource == kubetest.Claims {
			return kubetest.Unavailable
		}
		return kubetest.None
	})
	for path, want := range map[string]int{"/claim/team-a/local?node=n2": 302, "/claim/team-a/local": 503} {
		if got, _ := c.get("root", path); got.StatusCode != want {
			t.Errorf("%s without the API server: %s, want %d", path, got.Status, want)
		}
	}
}

// summaries answers as the exporter of a node on which team-a and team-b share a device.
func summaries(t *testing.T, node string) http.HandlerFunc {
	t.Helper()
	device := `{"driver":"gpu.example.com","pool":"` + node + `","device":"gpu-0"}`
	both := func(of func(string) string) string { return "[" + of("team-a") + "," + of("team-b") + "]" }
	answers := map[string]string{
		"/page/detail": `{"Own":true,"Title":"Claim team-a/train-team-a","Sections":[{"Title":"gpu-0","Rows":[
			[{"Text":"held by"},{"Text":"pod-team-a"}]]}]}`,
		"/api/v1/summary": `{"node":"n","devices":{"active":1,"free":3},"down":{"nvml":"timeout"},"claims":` +
			both(func(n string) string {
				return fmt.Sprintf(`{"namespace":%q,"name":"train-%s","state":"active","devices":1,"pods":["pod-%s"]}`, n, n, n)
			}) + `,"incidents":[{"id":"1","kind":"xid","device":` + device + `,"onset":"2026-01-01T00:00:00Z",
			"hit":["team-a/train-team-a","team-b/train-team-b"],"possible":["team-b/train-team-b"]},
			{"id":"2","kind":"link_down","device":` + device + `,"onset":"2026-01-01T00:00:00Z",
			"hit":["team-b/train-team-b"]}]}`,
	}
	for path, answer := range answers {
		must.That(t, json.Valid([]byte(answer)), "%s: %s", path, answer)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if body := answers[r.URL.Path]; !web.Tagged(w, r, web.TagOf([]byte(body))) {
			_, _ = io.WriteString(w, body)
		}
	}
}

// A user who may get the claims of a namespace sees these, their pods and their incidents, and
// nothing else.
func TestRights(t *testing.T) {
	c := newCluster(t)
	c.node("n1", summaries(t, "n1"))
	const claim, other = "/claim/team-a/train-team-a?node=n1", "/claim/team-b/train-team-b?node=n1"
	const pod = "/pod/team-a/pod-team-a?node=n1"
	for _, test := range []struct {
		user, path string
		want       int
		has        []string
	}{
		{"alice", claim, 200, []string{
			"train-team-a", "pod-team-a", "held by",
			`href="` + grafana + `/d/dra-claim?var-claim=train-team-a&amp;var-namespace=team-a&amp;var-node=n1"`,
		}},
		{"alice", pod, 200, []string{"pod-team-a", "var-pod=pod-team-a"}},
		{"alice", "/", 200, []string{"train-team-a", "xid", "n1"}},
		{"alice", other, 403, nil},
		{"alice", "/pod/team-b/pod-team-b?node=n1", 403, nil},
		{"alice", "/device/gpu.example.com/n1/gpu-0?node=n1", 403, nil},
		{"alice", "/node/n1/", 403, nil},
		{"alice", "/node/n1/api/v1/snapshot", 403, nil},
		{"alice", "/node/n1/page/script.js", 403, nil},
		{"nobody", claim, 403, nil},
		{"nobody", "/", 200, []string{"There is no node to show"}},
		{"nobody", "/node/n1/metrics", 403, nil},
		{"", "/", 401, nil},
		{"", claim, 401, nil},
		{"", "/node/n1/", 401, nil},
		{"stranger", "/", 401, nil},
		{"root", claim, 302, nil},
		{"root", "/", 200, []string{
			"train-team-a", "train-team-b", "link_down", "3 free", "nvml: timeout", `href="node/n1/"`,
			`</a> possibly <a href="claim/team-b/train-team-b?node=n1">`, `gpu-0 <a href="claim/team-a/train-team-a?node=n1">`,
			`href="` + grafana + `/d/dra-fleet"`, `href="` + grafana + `/d/dra-nodes?var-node=n1"`,
		}},
	} {
		got, body := c.get(test.user, test.path)
		expect.That(t, got.StatusCode == test.want, "%s of %q: %s, want %d", test.path, test.user, got.Status, test.want)
		for _, want := range test.has {
			expect.That(t, strings.Contains(body, want), "%s of %s has no %q:\n%s", test.path, test.user, want, body)
		}
		if test.user == "root" {
			continue
		}
		for _, secret := range []string{"train-team-b", "pod-team-b", "link_down", "free", "nvml"} {
			expect.That(t, !strings.Contains(body, secret), "%s of %q has %q:\n%s", test.path, test.user, secret, body)
		}
	}
}

// While the API server does not say what a user may see, there is no decision: the user is not
// refused, and may ask again.
func TestNoDecision(t *testing.T) {
	c := newCluster(t)
	c.node("n1", summaries(t, "n1"))
	c.api.Fail(func(resource string, _ bool) kubetest.Fault {
		if resource == "subjectaccessreviews" {
			return kubetest.Unavailable
		}
		return kubetest.None
	})
	for _, path := range []string{
		"/", "/claim/team-a/train-team-a?node=n1", "/pod/team-a/pod-team-a?node=n1",
		"/device/gpu.example.com/n1/gpu-0?node=n1", "/node/n1/", "/node/n1/metrics",
	} {
		got, _ := c.get("root", path)
		expect.That(t, got.StatusCode == http.StatusServiceUnavailable && got.Header.Get("Retry-After") == "5",
			"%s: %s, to be asked again after %q s", path, got.Status, got.Header.Get("Retry-After"))
	}
}

// The exporter leaves out of the details of a claim or a pod what belongs to others: models, other
// shares and their pods, texts and other holders of incidents. One that does not is not believed.
func TestOwnDetails(t *testing.T) {
	h := exportertest.NewHistory(t)
	own := h.Hold("train", "pod")
	own.Claim.Namespace, own.Holders[0].Namespace = "team-a", "team-a"
	entry := h.In.Inventory[jointest.ID("gpu-0")]
	entry.Model = "SECRETMODEL"
	h.In.Inventory[jointest.ID("gpu-0")] = entry
	h.Hold("theirs", "their-pod")
	r := recorder.New(recorder.Config{Interval: time.Second})
	for i := range 5 {
		h.Read(jointest.Watts(100), driver.Reading{
			Quantity: driver.Errors, Labels: driver.Labels{"xid", "31"}, Value: float64(i / 3), Since: jointest.Start().Add(1),
		})
		h.Pass(time.Second)
		r.Record(h.Last.Snapshot)
	}
	exporter := web.NewHandler(web.Config{
		Latest: func() *exposition.Snapshot { return h.Last }, Node: "n1", MetricsPath: "/metrics",
		Recorder: r, Scrapes: &web.Scrapes{}, QuietAfter: 30 * time.Second, Log: slog.New(slog.DiscardHandler),
	})
	c := newCluster(t)
	c.node("n1", exporter.ServeHTTP)
	c.node("n2", text("application/json", `{"Title":"their-pod"}`))
	for _, path := range []string{"/claim/team-a/train?node=n1", "/pod/team-a/pod?node=n1"} {
		for _, accept := range []string{"text/html", "application/json"} {
			answer, body := c.get("alice", path, "Accept", accept)
			for _, want := range []string{"train", "pod", "xid 31 on ", "50 W", "open"} {
				expect.That(t, answer.StatusCode == http.StatusOK && strings.Contains(body, want),
					"%s as %s: %s without %q:\n%s", path, accept, answer.Status, want, body)
			}
			for _, secret := range []string{"theirs", "their-pod", "SECRETMODEL", "gpu-0: XID", "Absent"} {
				expect.That(t, !strings.Contains(body, secret), "%s as %s has %q:\n%s", path, accept, secret, body)
			}
		}
	}
	answer, body := c.get("alice", "/claim/team-a/gone?node=n2")
	expect.That(t, answer.StatusCode == http.StatusBadGateway && !strings.Contains(body, "their-pod"),
		"details of more than the claim: %s %s", answer.Status, body)
}

// Entity tags depend on what a user may see: a page with more has another tag than a page with
// less, and a withdrawn right changes the page.
func TestTagsByPermission(t *testing.T) {
	c := newCluster(t)
	c.node("n1", summaries(t, "n1"))
	all, _ := c.get("root", "/")
	tag := all.Header.Get("Etag")
	if got, body := c.get("root", "/", "If-None-Match", tag); got.StatusCode != http.StatusNotModified {
		t.Errorf("the same page: %s %s", got.Status, body)
	}
	got, _ := c.get("alice", "/", "If-None-Match", tag)
	expect.That(t, got.StatusCode == http.StatusOK && got.Header.Get("Etag") != tag,
		"the tag of another's page: %s", got.Status)
	if got, _ := c.get("", "/", "If-None-Match", tag); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("nobody, with a tag: %s", got.Status)
	}
	for _, path := range []string{"/", "/claim/team-a/train-team-a?node=n1"} {
		if got, _ := c.get("alice", path); !strings.Contains(got.Header.Get("Cache-Control"), "no-cache") {
			t.Errorf("%s may be kept: %s", path, got.Header.Get("Cache-Control"))
		}
	}
}

// Nodes that don't answer are named with the reason, and do not keep the others.
func TestUnreachable(t *testing.T) {
	c := newCluster(t)
	c.node("n1", summaries(t, "n1"))
	c.node("bad", text("text/html", "no JSON"))
	c.node("refuses", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	c.node("moved", http.RedirectHandler("http://127.0.0.1/", http.StatusFound).ServeHTTP)
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	_ = listener.Close()
	c.endpoint("down", "dra-exporter", listener.Addr().String(), `{"kind":"Pod"}`)
	hold := make(chan struct{})
	c.node("hangs", func(http.ResponseWriter, *http.Request) { <-hold })
	t.Cleanup(func() { close(hold) })
	_, body := c.get("root", "/")
	for _, want := range []string{
		"connection refused", "refuses the gateway&#39;s own token", "answers what no exporter answers: status 302",
		"has not answered yet", "train-team-a", "4 of 6 nodes give no answer", "1 of 6 nodes have not answered yet",
		`<span class="dim">unknown</span>`,
	} {
		expect.That(t, strings.Contains(body, want), "the page has no %q:\n%s", want, body)
	}
	expect.That(t, !strings.Contains(body, listener.Addr().String()), "an address is on the page")
	first, second := strings.Index(body, `data-node="n1"`), strings.Index(body, `data-node="down"`)
	expect.That(t, first >= 0 && second >= first, "the node with incidents is not the first")
}

// TestOrder checks that nodes are in the order in which they need a look, whatever their names and
// numbers.
func TestOrder(t *testing.T) {
	incident := []present.IncidentSummary{{Kind: "xid"}}
	of := func(state book.State, n int) *present.Summary {
		return &present.Summary{Devices: map[book.State]int{state: n, book.StateActive: 8}}
	}
	inOrder := []*state{
		{node: "h", summary: of(book.StateUnhealthy, 1)},
		{node: "g", summary: &present.Summary{Incidents: incident}},
		{node: "f", err: errUnexpected},
		{node: "e", summary: of(book.StateStalled, 1)},
		{node: "d", summary: of(book.StateQuiet, 7)},
		{node: "c", summary: &present.Summary{Down: map[string]driver.Reason{"nvml": driver.ReasonTimeout}}},
		{node: "b", summary: of(book.StateFree, 8)},
		{node: "a", summary: of(book.StateActive, 8)},
	}
	given := slices.Clone(inOrder)
	slices.SortFunc(given, func(a, b *state) int { return strings.Compare(a.node, b.node) })
	var want, got []string
	for _, s := range inOrder {
		want = append(want, s.node)
	}
	for _, row := range newClusterPage(given, &view{all: true}, nil).Nodes {
		got = append(got, row.Name)
	}
	expect.That(t, slices.Equal(got, want), "the order is %v, want %v", got, want)
}

// While the API server does not answer, unknown users are refused.
func TestWithoutAPI(t *testing.T) {
	c := newCluster(t)
	c.node("n1", summaries(t, "n1"))
	c.api.Fail(func(string, bool) kubetest.Fault { return kubetest.Unavailable })
	for _, path := range []string{"/", "/node/n1/", "/claim/team-a/x"} {
		if got, _ := c.get("root", path); got.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: %s", path, got.Status)
		}
	}
	if got, _ := c.get("", "/healthz"); got.StatusCode != http.StatusOK {
		t.Errorf("the probe: %s", got.Status)
	}
	expect.That(t, len(c.requests()) == 0, "an exporter was asked")
}

// A list of exporters is used until there is a newer one.
func TestDirectory(t *testing.T) {
	now, lists := time.Unix(0, 0), 0
	var err error
	d := &directory{now: func() time.Time { return now }, list: func(context.Context) (map[string]string, error) {
		lists++
		return map[string]string{fmt.Sprintf("n%d", lists): "1.2.3.4:1", "no/name": "1.2.3.4:2"}, err
	}}
	steps := []struct {
		after time.Duration
		node  string
		err   error
		known bool
		lists int
	}{
		{0, "n1", nil, true, 1},
		{time.Second, "n2", nil, false, 1}, // not again so soon
		{2 * time.Second, "n2", nil, true, 2},
		{time.Second, "no/name", nil, false, 2},
		{20 * time.Second, "n2", io.EOF, true, 3}, // that of before
		{20 * time.Second, "n1", nil, false, 4},
	}
	for i, s := range steps {
		now, err = now.Add(s.after), s.err
		if _, known, _ := d.address(t.Context(), s.node); known != s.known || lists != s.lists {
			t.Errorf("step %d: %s known %v, %d lists", i, s.node, known, lists)
		}
	}
}
