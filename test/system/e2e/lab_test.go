package e2e

import (
	"bytes"
	"flag"
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
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
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
		return fmt.Sprintf(`{"node":%q,"time":"2026-01-01 00:00:00 UTC",
			"claims":[{"namespace":"team","name":"train-%d","device":"gpu-0"}],"pods":[],
			"devices":[{"driver":"gpu.example.com","pool":"p","device":"gpu-0",
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

var (
	labNodes = flag.Int("lab.nodes", 1000, "number of nodes in the tests of a bad day")
	labFor   = flag.Duration("lab.for", 20*time.Second, "how long these tests look at the page")
)

const (
	lookEach   = 5 * time.Second // the page's script does
	maxAge     = 15 * time.Second
	maxFirst   = time.Second
	firstCPU   = 2 * time.Second // from the start to the first page; 0.6 s on a quiet machine
	maxPeak    = 160 << 20
	maxTop     = 100 << 20
	firstBytes = 4 * time.Second
	late       = 2 * time.Second // how late a busy machine may be

	wholeAnswer = 20 * time.Second
)

// Nodes that hang cost no other node: healthy nodes are shown at once, are never said to be dead,
// and are asked as often as without them. Nodes that hang are asked less often. Without any, what
// reading all nodes takes is printed.
func TestHangingNodes(t *testing.T) {
	limit := maxFirst // of the first page, or what it takes without nodes that hang
	for _, hanging := range []int{0, *labNodes * 15 / 100, *labNodes / 2} {
		t.Run(fmt.Sprint(hanging), func(t *testing.T) {
			l := newLab(t, *labNodes, some(*labNodes, hanging, hangs))
			begun := time.Now()
			first := l.look()
			if hanging == 0 {
				cpu := l.gateway.cpu()
				expect.That(t, cpu <= firstCPU, "up to the first page it took %v of a processor, want %v", cpu, firstCPU)
				limit = max(limit, first.took)
			}
			expect.That(t, first.took <= limit+late, "the first page took %v, want %v", first.took, limit)
			dead, oldest, missing, used, moved := len(first.dead), time.Duration(0), first.missing, l.gateway.cpu(), l.bytes()
			for next := begun.Add(lookEach); time.Since(begun) < *labFor; next = next.Add(lookEach) {
				time.Sleep(time.Until(next))
				seen := l.look()
				if len(seen.dead) > 0 {
					t.Errorf("after %v healthy nodes are called dead: %d, such as %s", time.Since(begun), len(seen.dead), seen.dead[0])
				}
				dead = max(dead, len(seen.dead))
				if time.Since(begun) > maxAge {
					oldest, missing = max(oldest, seen.oldest), seen.missing
				}
			}
			expect.That(t, oldest <= maxAge && missing <= 0,
				"the oldest answer of a healthy node is of %v ago, want %v; %d are missing", oldest, maxAge, missing)
			l.mu.Lock()
			most := 0
			for i := range l.manners {
				most = max(most, l.asked[i])
			}
			l.mu.Unlock()
			t.Logf("%d of %d nodes hang: first page after %v without %d healthy nodes; healthy nodes called dead: %d at most, "+
				"oldest answer %v; a hanging node was asked %d times at most; %.1f MiB at most; %.2f %% of a processor, %.2f MB a "+
				"minute", hanging, *labNodes, first.took.Round(time.Millisecond), first.missing, dead,
				oldest.Round(100*time.Millisecond), most, mib(l.gateway.memory("VmHWM")),
				100*(l.gateway.cpu()-used).Seconds()/time.Since(begun).Seconds(),
				float64(l.bytes()-moved)/1e6/time.Since(begun).Minutes())
		})
	}
}

// Nodes that send more than a node has are named, and cost neither the others nor the gateway's
// memory. Among them are all other manners.
func TestLyingNodes(t *testing.T) {
	liars := some(*labNodes, 10, lies)
	for i, how := range []manner{floods, drips, hangs} {
		liars[i+1] = how
	}
	l := newLab(t, *labNodes, liars)
	seen := l.look()
	live.Await(t, startTimeout, "the honest nodes are shown, and the others named", func() error {
		time.Sleep(time.Second)
		seen = l.look()
		if named := strings.Count(seen.page, "answers too much"); seen.missing > 0 || named != 11 ||
			!strings.Contains(seen.page, "does not answer in time") {
			return fmt.Errorf("%d honest nodes are missing, %d are named", seen.missing, named)
		}
		return nil
	})
	var asking sync.WaitGroup
	for i, how := range liars {
		if how == lies || how == floods {
			asking.Go(func() {
				ask := func() answer { return l.get("alice", fmt.Sprintf("/claim/team-1/x?node=%s", nodeOf(i))) }
				a := ask()
				for strings.Contains(string(a.Body), "for which there is no memory") { // beside those of the others
					a = ask()
				}
				if a.Status != http.StatusBadGateway || !strings.Contains(string(a.Body), "answers too much") {
					t.Errorf("a claim on %s: status %d: %.200s", nodeOf(i), a.Status, a.Body)
				}
			})
		}
	}
	asking.Wait()
	expect.That(t, len(seen.dead) == 0 && len(seen.page) <= 5<<20,
		"honest nodes called dead: %v; %d bytes of the page", seen.dead, len(seen.page))
	peak := l.gateway.memory("VmHWM")
	expect.That(t, peak <= maxPeak, "%.1f MiB at most, want %d", mib(peak), maxPeak>>20)
	t.Logf("ten of %d nodes lie: %.1f MiB at most; the page has %d bytes", *labNodes, mib(peak), len(seen.page))
}

// Every request ends: with a word about a node that sends nothing or too slowly. Requests for such
// a node do not delay those for another one, and a user's requests not those of another user.
func TestSilentNodes(t *testing.T) {
	l := newLab(t, 4, map[int]manner{0: hangs, 1: drips, 2: floods})
	node := func(i int) string { return "/node/" + nodeOf(i) + "/" }
	var asking sync.WaitGroup
	for i, of := range []struct {
		want string
		most time.Duration
	}{{"does not answer in time", firstBytes}, {"sends its answer too slowly", wholeAnswer}} {
		for user, path := range map[string]string{
			"lead": node(i), "alice": fmt.Sprintf("/claim/team-1/train-%d-0?node=%s", i, nodeOf(i)),
		} {
			asking.Go(func() { l.ends(user, path, of.want, of.most) })
		}
	}
	asking.Wait()
	for range 16 {
		asking.Go(func() { l.get("alice", "/claim/team-1/train-0-0?node="+nodeOf(0)) })
	}
	l.gateway.eventually("the claims of the node that hangs are asked for", func() bool { return l.hanging() >= 4 })
	for _, user := range []string{"alice", "bob"} {
		if a := l.get(user, "/claim/team-1/train-3-0?node="+nodeOf(3)); a.Status != http.StatusOK || a.Took > maxFirst+late {
			t.Errorf("%s: a claim on another node: status %d after %v: %.200s", user, a.Status, a.Took, a.Body)
		} else {
			t.Logf("%s: the page of a claim on another node after %v", user, a.Took.Round(time.Millisecond))
		}
	}
	asking.Wait()
}

// ends checks that a request ends in time, with a word about the node.
func (l *lab) ends(user, path, want string, most time.Duration) {
	client := *l.gateway.client
	client.Timeout = 40 * time.Second
	p := *l.gateway
	p.client = &client
	from := time.Now()
	a, err := p.get(path, "Authorization", "Bearer "+user)
	switch took := time.Since(from); {
	case err != nil:
		l.Errorf("%s gave no answer in %v: %v", path, took, err)
	case took > most+late || a.Status != http.StatusGatewayTimeout || !strings.Contains(string(a.Body), want):
		l.Errorf("%s: status %d after %v without %q: %.200s", path, a.Status, took, want, a.Body)
	default:
		l.Logf("%s: status %d after %v: %s", path, a.Status, took.Round(10*time.Millisecond), want)
	}
}

// Each document that is short for the memory it would take is refused, whoever reads it: the page
// of the cluster, that of a claim, and top.
func TestLies(t *testing.T) {
	claim := func(l *lab) (said string, peak int64) {
		a := l.get("alice", "/claim/team-1/x?node="+nodeOf(0))
		return string(a.Body), l.gateway.memory("VmHWM")
	}
	for _, test := range []struct {
		name, lies string
		read       func(l *lab) (said string, peak int64)
		want       string
		most       int64
	}{
		{"2 MiB of claims", many("claims", 2<<20), claim, "answers too much", maxPeak},
		{"8 MiB of claims", many("claims", 8<<20), claim, "answers too much", maxPeak},
		{"a summary of 510 KiB", many("incidents", 510<<10), func(l *lab) (string, int64) {
			var a answer
			l.gateway.eventually("the node is named", func() bool {
				a = l.get("lead", "/")
				return strings.Contains(string(a.Body), "answers too much")
			})
			expect.That(t, len(a.Body) <= 64<<10, "a page of %d bytes for two nodes", len(a.Body))
			return string(a.Body), l.gateway.memory("VmHWM")
		}, "answers too much", maxPeak},
		{"4.2 MB of devices for top", many("devices", 4_200_000), (*lab).top, "answer is too large", maxTop},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t, 2, map[int]manner{0: lies})
			l.lies = test.lies
			said, peak := test.read(l)
			expect.That(t, strings.Contains(said, test.want), "no %q in\n%.600s", test.want, said)
			expect.That(t, peak <= test.most && peak != 0, "%.1f MiB at most, want %d", mib(peak), test.most>>20)
			t.Logf("%s: %.1f MiB at most", test.name, mib(peak))
		})
	}
}

// top names the exporters that lie, takes no memory for them, and shows the others. On a busy
// machine, some do not answer within its five seconds.
func TestTopOfLyingNodes(t *testing.T) {
	l := newLab(t, *labNodes, some(*labNodes, 10, lies))
	from := time.Now()
	said, peak := l.top()
	late := strings.Count(said, "deadline exceeded")
	named := strings.Count(said, "answer is too large") + strings.Count(said, "no memory is left for the answer")
	shown := strings.Count(said, "gpu-0")
	expect.That(t, named+late >= 10 && shown <= *labNodes-10 && shown+named+late == *labNodes && shown >= *labNodes/2,
		"top names %d nodes and %d late ones, and shows %d of the others:\n%.600s", named, late, shown, said)
	expect.That(t, peak <= maxTop && peak != 0, "%.1f MiB at most, want %d", mib(peak), maxTop>>20)
	t.Logf("top of %d nodes of which ten lie: %.1f MiB at most, %v; it names %d, and %d late ones", *labNodes, mib(peak),
		time.Since(from).Round(10*time.Millisecond), named, late)
}

// top runs top once for all nodes of the lab. It returns what it prints, and its peak of memory.
func (l *lab) top() (said string, peak int64) {
	args := []string{"top", "--once"}
	for i := range l.nodes {
		args = append(args, "--url="+addressOf(i)+":"+l.port)
	}
	cmd := command(l.Context(), args)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	must.Do(l, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			expect.That(l, err != nil, "the exit status is 0")
			return output.String(), peak
		case <-time.After(2 * time.Millisecond):
			if now, err := live.Memory(cmd.Process.Pid, "VmHWM"); err == nil {
				peak = now
			}
		}
	}
}
