package attack

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/standstill"
)

const (
	// honestTimeout is the timeout of the honest scraper, the default of Prometheus.
	honestTimeout = 10 * time.Second
	// honestInterval is the time between two scrapes of the honest scraper.
	honestInterval = 50 * time.Millisecond
	// maxHonest is the limit of the 99th percentile of the duration of honest scrapes during an
	// attack.
	maxHonest = 200 * time.Millisecond
	// maxAge is the limit of the age of the snapshot in an honest scrape, without the time for
	// which the machine stood still.
	maxAge = 2500 * time.Millisecond
	// maxTick is the limit of the duration of a tick. With an interval of a second, the snapshot is
	// then no older than maxAge.
	maxTick = maxAge - time.Second
	// maxRecovery is the limit of the time until the program has recovered from an attack.
	maxRecovery = 5 * time.Second
)

// newClient returns a client with its own connections: HTTP/1 without TLS, HTTP/2 with TLS.
func newClient(trust *x509.CertPool) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableCompression: true, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: trust},
	}}
}

// answer is the answer to a scrape.
type answer struct {
	body  string // decompressed
	asked time.Time
	took  time.Duration
}

// errRefused means that the program has answered 503 with a time after which to try again.
var errRefused = errors.New("refused for now")

// scrape scrapes as Prometheus does. It returns errRefused for a refusal that is well-formed, and
// another error unless the answer is complete.
func (g *target) scrape(timeout time.Duration) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	begun := time.Now()
	got, err := live.Ask(ctx, g.client, g.url("/metrics"), g.headers()...)
	if err != nil {
		return answer{}, fmt.Errorf("scrape: %w", err)
	}
	body, err := decompressed(got)
	a := answer{body: body, asked: begun, took: time.Since(begun)}
	switch {
	case err != nil:
		return a, fmt.Errorf("read the answer: %w", err)
	case got.Status == http.StatusServiceUnavailable && got.Header.Get("Retry-After") != "":
		return a, errRefused
	case got.Status != http.StatusOK:
		return a, fmt.Errorf("status %d: %.100s", got.Status, body)
	case !strings.HasSuffix(body, "\n# EOF\n"):
		return a, fmt.Errorf("an answer of %d bytes has no end", len(body))
	}
	return a, nil
}

// headers returns the headers of a request for the metrics as Prometheus sends it.
func (g *target) headers() []string {
	out := []string{"Accept", openMetrics, "Accept-Encoding", "gzip"}
	if g.authorization != nil {
		out = append(out, "Authorization", g.authorization())
	}
	return out
}

// openMetrics is what Prometheus accepts, without its protobuf.
const openMetrics = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.3"

func decompressed(a live.Answer) (string, error) {
	if a.Header.Get("Content-Encoding") != "gzip" {
		return string(a.Body), nil
	}
	plain, err := gzip.NewReader(bytes.NewReader(a.Body))
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(plain)
	return string(body), err
}

// figures are the effects of an attack on the program and on an honest scraper.
type figures struct {
	times   []time.Duration // of the answers that were complete, sorted
	refused int
	failed  []error
	peak    int64 // resident bytes
	over    bool  // over the limit of memory
	lasted  time.Duration

	// The greatest age of a snapshot at the time of the request, and at the end of the answer, less
	// the time for which the machine stood still.
	oldest, arrived time.Duration

	charged []charge // of the short pods
}

// during runs the attack and the honest scraper, and returns the figures. The context of the attack
// ends when the program ends, and after atMost. The attack must end soon after its context.
func (g *target) during(atMost time.Duration, attack func(ctx context.Context)) figures {
	ctx, cancel := context.WithTimeout(context.Background(), atMost)
	defer cancel()
	over := make(chan struct{})
	go func() {
		defer close(over)
		attack(ctx)
	}()
	timeout := honestTimeout
	if !*all {
		timeout = time.Minute // on a machine that stands still
	}
	var f figures
	stood, stopWatch := standstill.Watch()
	defer stopWatch()
	short := g.startShortPods(ctx)
	begun := time.Now()
	again := time.NewTicker(honestInterval)
	defer again.Stop()
	for attacking := true; attacking; {
		a, err := g.scrape(timeout)
		switch {
		case err == nil:
			f.times = append(f.times, a.took)
			f.oldest = max(f.oldest, ageOf(a, a.asked, stood()))
			f.arrived = max(f.arrived, ageOf(a, a.asked.Add(a.took), stood()))
		case errors.Is(err, errRefused):
			f.refused++
		default:
			f.failed = append(f.failed, err)
		}
		select {
		case <-again.C:
		case <-g.Ended():
			cancel()
			<-over
			attacking = false
		case <-over:
			attacking = false
		}
	}
	f.lasted = time.Since(begun)
	cancel() // no short pod comes any more
	f.charged = g.charges(short())
	slices.Sort(f.times)
	f.peak, f.over = g.resident()
	g.t.Logf("%v", f)
	return f
}

// ageOf returns the age of the snapshot of an answer at a time, without the time for which the
// machine stood still in between.
func ageOf(a answer, then time.Time, stood []standstill.Span) time.Duration {
	at, err := valueOf(a.body, "dra_exporter_snapshot_timestamp_seconds")
	if err != nil {
		return 0 // there is none yet
	}
	seconds, fraction := math.Modf(at)
	span := standstill.Span{From: time.Unix(int64(seconds), int64(fraction*1e9)), To: then}
	return max(0, span.To.Sub(span.From)-span.Overlap(stood))
}

// p99 returns the 99th percentile of the durations. Scrapes without a complete answer count as the
// longest ones.
func (f figures) p99() time.Duration {
	n := len(f.times) + f.refused + len(f.failed)
	if i := n * 99 / 100; i < len(f.times) {
		return f.times[i]
	}
	return honestTimeout
}

// good returns the number of short pods with a correct charge.
func (f figures) good() (n int) {
	for _, c := range f.charged {
		if c.isGood() {
			n++
		}
	}
	return n
}

// String returns the figures as one line.
func (f figures) String() string {
	var median, slowest time.Duration
	if n := len(f.times); n > 0 {
		median, slowest = f.times[n/2], f.times[n-1]
	}
	s := fmt.Sprintf("honest scrapes: %d complete (median %v, slowest %v), %d refused, %d failed; p99 %v; "+
		"at most %.1f MiB resident",
		len(f.times), median.Round(time.Millisecond), slowest.Round(time.Millisecond), f.refused, len(f.failed),
		f.p99().Round(time.Millisecond), float64(f.peak)/(1<<20))
	s += fmt.Sprintf("; snapshots at most %v old when asked for, %v when they arrive",
		f.oldest.Round(10*time.Millisecond), f.arrived.Round(10*time.Millisecond))
	if n := len(f.charged); n > 0 {
		s += fmt.Sprintf("; %d of %d short pods charged within %.0f %%", f.good(), n, 100*maxCharge)
	}
	if f.over {
		s += fmt.Sprintf(": over the limit of memory, killed after %v", f.lasted.Round(100*time.Millisecond))
	}
	return s
}

// expectHeld checks the figures: the program runs within its memory limit, and honest scrapes are
// complete or refused. If durations are checked, 99 of 100 scrapes are complete within maxHonest.
func (g *target) expectHeld(t testing.TB, f figures) {
	t.Helper()
	expect.That(t, !f.over && f.peak <= g.most, "%d MiB were resident, want at most %d", f.peak>>20, g.most>>20)
	if f.over {
		<-g.Ended()
	}
	if !g.Running() {
		t.Errorf("the program has ended: %v", g.State())
		return
	}
	if len(f.failed) > 0 {
		t.Errorf("%d of the honest scrapes failed, the first one with: %v", len(f.failed), f.failed[0])
	}
	p99 := f.p99()
	expect.That(timed(t), p99 <= maxHonest, "honest scrapes took %v at p99, want at most %v", p99, maxHonest)
	expect.That(timed(t), f.oldest <= maxAge, "a snapshot was %v old, want at most %v", f.oldest, maxAge)
	f.expectCharged(t)
	begun := time.Now()
	g.await("as before the attack", g.complete)
	took := time.Since(begun)
	expect.That(timed(t), took <= maxRecovery, "%v after the attack all was as before, want %v at most", took, maxRecovery)
	a, err := g.scrape(honestTimeout)
	if err != nil {
		t.Errorf("scrape after the attack: %v", err)
		return
	}
	longest, err := valueOf(a.body, "dra_exporter_longest_tick_seconds")
	t.Logf("the longest tick of ten minutes took %.2f s, %d incidents are open", longest, openIncidents(a.body))
	expect.That(timed(t), err == nil && longest <= maxTick.Seconds(),
		"the longest tick took %v s, %v, want %v at most", longest, err, maxTick)
}

// expectShown checks that a scrape soon shows a text.
func (g *target) expectShown(text string) {
	g.t.Helper()
	for begun := time.Now(); ; time.Sleep(honestInterval) {
		a, err := g.scrape(honestTimeout)
		switch {
		case err == nil && strings.Contains(a.body, text):
			return
		case time.Since(begun) > honestTimeout:
			g.t.Errorf("not shown after %v: %s (%v)", honestTimeout, text, err)
			return
		}
	}
}

// valueOf returns the value of a series, given as in the text format.
func valueOf(body, series string) (float64, error) {
	_, after, found := strings.Cut(body, "\n"+series+" ")
	if !found {
		return 0, errors.New("no " + series)
	}
	value, _, _ := strings.Cut(after, "\n")
	return strconv.ParseFloat(value, 64)
}

const (
	// shortLife is the lifetime of a short pod.
	shortLife = 500 * time.Millisecond
	// maxCharge is the largest relative error of the charge of a short pod.
	maxCharge = 0.2
	// minCharged is the part of the short pods that must be within maxCharge.
	minCharged = 0.9
)

// charge has the lifetime of a short pod, and the time for which it held its device by the program.
// The kubelet and the cgroup show its start and its end one after the other, and with a delay if
// the test has to wait for a processor. Its shortest possible life is from the later start to the
// earlier end, its longest from the earlier start to the later end.
type charge struct {
	pod         string
	least, most time.Duration
	said        time.Duration
	isNotThere  bool
}

func (c charge) isGood() bool {
	return !c.isNotThere && c.said.Seconds() >= (1-maxCharge)*c.least.Seconds() &&
		c.said.Seconds() <= (1+maxCharge)*c.most.Seconds()
}

func (c charge) String() string {
	lived := fmt.Sprintf("%s lived for %v to %v", c.pod, c.least, c.most)
	if c.isNotThere {
		return lived + ", and is not there"
	}
	return fmt.Sprintf("%s, and is charged %v", lived, c.said)
}

// servePods serves the kubelet's Pods API with pods, and with short pods. Their UIDs are therefore
// known immediately, as with Kubernetes 1.37 or with the API server.
func servePods(t testing.TB, node *largenode.Node, pods []*v1.PodResources) *podresourcestest.Pods {
	served := must.Get(node.ServePods())(t)
	t.Cleanup(served.Stop)
	for i, pod := range pods {
		served.Set(running(pod.Namespace, pod.Name, fmt.Sprintf("cccccccc-0000-0000-0000-%012d", i)))
	}
	return served
}

// running returns a pod that runs.
func running(namespace, name, uid string) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = namespace, name, types.UID(uid)
	pod.Spec.NodeName, pod.Spec.Containers = largenode.Name, []corev1.Container{{Name: "main"}}
	pod.Status.Phase = corev1.PodRunning
	return pod
}

// startShortPods starts and ends pods with their own cgroups until ctx ends, if the target wants
// them and durations are checked. The returned function waits for the last one, and returns the
// lifetime of each.
func (g *target) startShortPods(ctx context.Context) func() []charge {
	if g.pods == nil || !*all {
		return func() []charge { return nil }
	}
	ended := make(chan struct{})
	var all []charge
	go func() {
		defer close(ended)
		for ; ctx.Err() == nil; g.born++ {
			if c, ok := g.shortPod(g.born); ok {
				all = append(all, c)
			}
			select {
			case <-ctx.Done():
			case <-time.After(shortLife):
			}
		}
	}()
	return func() []charge {
		<-ended
		return all
	}
}

// charges returns the charges of the short pods.
func (g *target) charges(lived []charge) []charge {
	if len(lived) == 0 {
		return nil
	}
	time.Sleep(3 * time.Second) // for the last one
	a, err := g.scrape(time.Minute)
	if err != nil {
		return nil
	}
	for i, c := range lived {
		if lived[i] = c.found(a.body); !lived[i].isGood() {
			g.t.Log(lived[i])
		}
	}
	return lived
}

// expectCharged checks the charges of the short pods.
func (f figures) expectCharged(t testing.TB) {
	for _, c := range f.charged {
		expect.That(timed(t), !c.isNotThere, "%v", c)
	}
	if good, all := f.good(), len(f.charged); float64(good) < minCharged*float64(all) {
		timed(t).Errorf("%d of %d short pods were charged within %.0f %%", good, all, 100*maxCharge)
	}
}

// shortPod starts a pod and ends it. It returns false if that failed.
func (g *target) shortPod(n int) (charge, bool) {
	name := fmt.Sprintf("short-%d", n)
	uid := fmt.Sprintf("bbbbbbbb-0000-0000-0000-%012d", n)
	cgroup := g.node.CgroupOf(uid)
	base := g.base
	if base == nil {
		base = largenode.PodList()
	}
	with := slices.Concat(base, []*v1.PodResources{latePod(name)})
	g.pods.Set(running("team-0", name, uid))
	begun := time.Now()
	if os.Mkdir(cgroup, 0o755) != nil || g.node.Kubelet.SetPods(with...) != nil {
		return charge{}, false
	}
	listed := time.Now()
	time.Sleep(shortLife - time.Since(begun))
	c := charge{pod: name, least: time.Since(listed)}
	if os.Remove(cgroup) != nil {
		return charge{}, false
	}
	g.pods.Remove(uid)
	failed := g.node.Kubelet.SetPods(base...)
	c.most = time.Since(begun)
	return c, failed == nil
}

// found returns the charge completed with the exposition's values of the pod's claim.
func (c charge) found(body string) charge {
	c.isNotThere = true
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, "dra_claim_allocated_seconds_total{") ||
			!strings.Contains(line, `resourceclaim_name="`+c.pod+`"`) {
			continue
		}
		line = strings.TrimSpace(line)
		seconds, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err == nil {
			c.said, c.isNotThere = time.Duration(seconds*float64(time.Second)), false
		}
	}
	return c
}

// latePod is a pod in addition to those of the large node.
func latePod(name string) *v1.PodResources {
	share := podresourcestest.Share(largenode.Driver, largenode.Name, "gpu-0", "share-of-"+name)
	claim := podresourcestest.Claim("team-0", name, share)
	return podresourcestest.Pod("team-0", name, podresourcestest.Container("main", claim))
}
