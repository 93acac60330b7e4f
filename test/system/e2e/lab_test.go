package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/standstill"
)

// manner is how an exporter of the lab answers.
type manner string

// The manners.
const (
	honest manner = "honest"
	hangs  manner = "hangs"  // sends nothing
	drips  manner = "drips"  // sends a byte a second
	lies   manner = "lies"   // sends short documents that are large in memory
	floods manner = "floods" // sends without end
)

// lab is a gateway, its API server, and exporters of many nodes, each of which has an address of
// its own on the loopback interface.
type lab struct {
	*testing.T
	nodes   int
	port    string
	api     *kubetest.Server
	gateway *program
	stood   func() []standstill.Span // when the machine stood still
	closing chan struct{}            // closed when the lab ends
	lies    string                   // what nodes that lie answer to all; "": see lie

	mu       sync.Mutex
	manners  map[int]manner    // of the nodes that are not honest
	answered map[int]time.Time // when an honest node last answered a request for its summary
	asked    map[int]int       // number of such requests
	open     int               // requests of nodes that hang
	moved    int64             // bytes of these requests and answers, with 400 bytes of headers each
}

// newLab starts a lab. lead may see everything, alice the claims of team-1.
func newLab(t *testing.T, nodes int, manners map[int]manner, flags ...string) *lab {
	api, kubeconfig := apiServer(t)
	l := &lab{
		T: t, nodes: nodes, api: api, closing: make(chan struct{}), manners: manners, answered: map[int]time.Time{},
		asked: map[int]int{},
	}
	api.Allow("lead", func(authorizationv1.SubjectAccessReviewSpec) bool { return true })
	for _, user := range []string{"alice", "bob"} {
		api.Allow(user, func(s authorizationv1.SubjectAccessReviewSpec) bool {
			return s.ResourceAttributes != nil && s.ResourceAttributes.Namespace == "team-1"
		})
	}
	listener := must.Get(net.Listen("tcp", "0.0.0.0:0"))(t)
	server := &http.Server{Handler: http.HandlerFunc(l.serve), ReadHeaderTimeout: startTimeout}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		close(l.closing)
		_ = server.Close()
		<-done
	})
	var endpoints []string
	for i := range nodes {
		endpoints = append(endpoints, endpointOn(nodeOf(i), addressOf(i)))
	}
	_, l.port, _ = net.SplitHostPort(listener.Addr().String())
	exporters(api, l.port, endpoints)
	var stop func()
	l.stood, stop = standstill.Watch()
	t.Cleanup(stop)
	l.gateway = gateway(t, kubeconfig, flags...)
	return l
}

func nodeOf(i int) string { return fmt.Sprintf("node-%d", i) }

func addressOf(i int) string { return fmt.Sprintf("127.1.%d.%d", i/250, i%250+1) }

// serve answers as the exporter of the node to which the request was sent.
func (l *lab) serve(w http.ResponseWriter, r *http.Request) {
	var a, b int
	_, _ = fmt.Sscanf(r.Host, "127.1.%d.%d:", &a, &b)
	i := a*250 + b - 1
	summary := r.URL.Path == "/api/v1/summary"
	l.mu.Lock()
	how := l.manners[i]
	if summary {
		l.asked[i]++
	}
	l.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path == "/" {
		w.Header().Set("Content-Type", "text/html")
	}
	switch how {
	case hangs:
		l.count(1)
		l.wait(r, time.Hour)
		l.count(-1)
	case drips:
		l.drip(w, r)
	case lies:
		_, _ = io.WriteString(w, l.lie(r.URL.Path))
	case floods:
		for text := `{"new":[{}`; ; text = strings.Repeat(",{}", 20<<10) {
			if _, err := io.WriteString(w, text); err != nil {
				return
			}
		}
	default:
		body := l.truth(i, r.URL.Path)
		sent := 0
		if !web.Tagged(w, r, web.TagOf([]byte(body))) {
			sent, _ = io.WriteString(w, body)
		}
		if summary {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.moved += int64(sent) + 400
			l.answered[i] = time.Now()
		}
	}
}

func (l *lab) count(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open += n
}

// hanging returns the number of requests that nodes have not answered, since they hang.
func (l *lab) hanging() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// bytes returns how much the nodes have received and sent.
func (l *lab) bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moved
}

// wait waits until the client or the lab is gone, for a time at most.
func (l *lab) wait(r *http.Request, most time.Duration) (gone bool) {
	select {
	case <-l.closing:
		return true
	case <-r.Context().Done():
		return true
	case <-time.After(most):
		return false
	}
}

func (l *lab) drip(w http.ResponseWriter, r *http.Request) {
	for !l.wait(r, time.Second) {
		if _, err := io.WriteString(w, " "); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush() // the next write fails as well
	}
}

// lie returns a document with far more elements than a node has.
func (l *lab) lie(path string) string {
	switch {
	case l.lies != "":
		return l.lies
	case path == "/api/v1/summary":
		return many("incidents", 510<<10)
	default:
		return many("incidents", 8<<20)
	}
}

// many returns a document of a size with a list of empty elements.
func many(list string, size int) string {
	return `{"` + list + `":[{}` + strings.Repeat(",{}", (size-len(list)-10)/3) + "]}"
}

// truth returns what a node with eight devices and claims answers. One node in a hundred changes
// each 10 s.
func (l *lab) truth(i int, path string) string {
	state := "active"
	if (i+int(time.Now().Unix()/10))%100 == 0 {
		state = "quiet"
	}
	var claims []string
	for c := range 8 {
		name := fmt.Sprintf("train-%d-%d", i, c)
		claims = append(claims, fmt.Sprintf(`{"namespace":"team-%d","name":%q,"state":%q,"devices":1,"pods":["%s-0"]}`,
			i%20, name, state, name))
	}
	switch path {
	case "/api/v1/summary":
		return fmt.Sprintf(`{"node":%q,"devices":{%q:8},"claims":[%s],"incidents":[]}`, nodeOf(i), state,
			strings.Join(claims, ","))
	case "/page/rows":
		return fmt.Sprintf(`{"node":%q,"time":"2026-01-01 00:00:00 UTC","ids":["gpu.example.com/p/gpu-0"],
			"claims":[["team","train-%d",0]],"pods":[],"devices":[{"driver":"gpu.example.com","pool":"p","device":"gpu-0",
			"id":"gpu.example.com/p/gpu-0","state":"active"}]}`, nodeOf(i), i)
	case "/page/detail":
		return `{"Own":true,"Sections":[{"Title":"gpu-0","Rows":[[{"Text":"state"},{"Text":"active"}]]}]}`
	case "/":
		return "<!doctype html><title>" + nodeOf(i) + "</title>"
	default:
		return `{"incidents":[]}`
	}
}

// get requests a path of the gateway as a user.
func (l *lab) get(user, path string) answer {
	a, err := l.gateway.get(path, "Authorization", "Bearer "+user)
	must.That(l, err == nil, "get %s: %v", path, err)
	return a
}

// look is what one request for the page of the cluster has shown.
type look struct {
	took    time.Duration
	oldest  time.Duration // the oldest answer of an honest node, by the lab's own clock
	dead    []string      // honest nodes that are said not to answer
	missing int           // honest nodes whose claims are not on the page
	page    string
}

// troubled finds rows of the page with the trouble that is shown for the node.
var troubled = regexp.MustCompile(`data-node="([^"]+)"><td>[^\n]*?<div class="bad">([^<]*)</div>`)

// lastClaim finds the last claims of nodes.
var lastClaim = regexp.MustCompile(`/train-(\d+)-7<`)

// look requests the page. Times in which the machine stood still do not count.
func (l *lab) look() look {
	from := time.Now()
	a := l.get("lead", "/")
	now := time.Now()
	stood := l.stood()
	out := look{page: string(a.Body), took: a.Took - standstill.Span{From: from, To: now}.Overlap(stood)}
	must.That(l, a.Status == http.StatusOK, "status %d: %.300s", a.Status, a.Body)
	for _, row := range troubled.FindAllStringSubmatch(out.page, -1) {
		var i int
		if _, err := fmt.Sscanf(row[1], "node-%d", &i); err == nil && l.manner(i) == honest {
			out.dead = append(out.dead, row[1]+": "+row[2])
		}
	}
	shown := map[string]bool{}
	for _, claim := range lastClaim.FindAllStringSubmatch(out.page, -1) {
		shown[claim[1]] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.nodes {
		if l.manners[i] != "" {
			continue
		}
		if !shown[fmt.Sprint(i)] {
			out.missing++
		}
		if at, ok := l.answered[i]; ok {
			out.oldest = max(out.oldest, now.Sub(at)-standstill.Span{From: at, To: now}.Overlap(stood))
		}
	}
	return out
}

func (l *lab) manner(i int) manner {
	l.mu.Lock()
	defer l.mu.Unlock()
	if how, ok := l.manners[i]; ok {
		return how
	}
	return honest
}

// some returns manners of n nodes, spread over all.
func some(nodes, n int, how ...manner) map[int]manner {
	out := map[int]manner{}
	for i := range n {
		out[i*nodes/n] = how[i%len(how)]
	}
	return out
}
