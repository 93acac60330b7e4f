package attack

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/node"
)

// unknownTokens are sent by strangers, some of them at the address of the honest scraper. The token
// of the honest scraper is renewed each second: it has another signature.
func unknownTokens(t testing.TB) {
	const rejected = `dra_exporter_input_rejected_total{input="reviews",reason="rate_limited"}`
	large := largenode.Start(t)
	served := servePods(t, large, largenode.PodList())
	api, kubeconfig := largenode.StartAPI(t)
	api.Allow("scraper", func(authorizationv1.SubjectAccessReviewSpec) bool { return true })
	g := launch(t, large, map[string]string{"kube": "auto", "inventory.file": "", "kubeconfig": kubeconfig},
		"--web.kube-authorization")
	g.pods = served
	begun := time.Now()
	g.authorization = func() string {
		return fmt.Sprintf("Bearer %s%.0f", kubetest.Token("scraper", "dra-exporter"), time.Since(begun).Seconds())
	}
	g.await("aware of the node", g.complete)
	said, asked := len(g.logged()), api.Usage().Requests
	f := g.attackedUntil(func() bool { return g.rejects(rejected) }, clients{"stranger", 90})
	asked = api.Usage().Requests - asked
	t.Logf("the API server was sent %d requests in %v", asked, f.lasted)
	g.expectHeld(t, f)
	expect.That(t, f.refused <= 0, "%d of the honest scrapes were refused", f.refused)
	if most := 50 + 12*int(f.lasted.Seconds()); asked > most { // two of them about each new token of the honest scraper
		t.Errorf("the API server was sent %d requests, want at most %d", asked, most)
	}
	if said = len(g.logged()) - said; said > 10 {
		t.Errorf("%d lines were logged", said)
	}
	a := must.Get(g.scrape(honestTimeout))(t)
	up, err := valueOf(a.body, `dra_exporter_source_up{source="reviews"}`)
	expect.That(t, err == nil && up == 1, "source_up of the reviews is %v, %v", up, err)
	g.expectRejected(rejected)
}

// passwordConfig has the user scraper with the password fakepassword.
const passwordConfig = `basic_auth_users: {scraper: $2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi}
`

// wrongPasswords are sent by clients of one address. Checking a password takes long.
func wrongPasswords(t testing.TB) {
	const rejected = `dra_exporter_input_rejected_total{input="requests",reason="too_many"}`
	g := newPasswordTarget(t)
	f := g.attackedUntil(func() bool { return g.rejects(rejected) }, clients{"guesser", 50})
	g.expectHeld(t, f)
	expect.That(t, f.refused <= 0, "%d of the honest scrapes were refused", f.refused)
	g.expectRejected(rejected)
}

// newPasswordTarget is newTarget with passwordConfig.
func newPasswordTarget(t testing.TB) *target {
	large := largenode.Start(t)
	served := servePods(t, large, largenode.PodList())
	g := launch(t, large, map[string]string{"web.config.file": large.Write(t, "web.yaml", passwordConfig)})
	g.pods = served
	g.authorization = func() string { return live.Basic("scraper", "fakepassword") }
	g.await("aware of the node", g.complete)
	return g
}

// newCertificateTarget is newTarget with TLS. The honest scraper has a certificate.
func newCertificateTarget(t testing.TB) *target {
	large := largenode.Start(t)
	trust := live.Certificate(t, large.Dir)
	own := must.Get(tls.LoadX509KeyPair(large.Path("cert.pem"), large.Path("key.pem")))(t)
	g := launch(t, large, map[string]string{"web.config.file": large.Write(t, "web.yaml", `tls_server_config:
  {cert_file: cert.pem, key_file: key.pem, client_ca_file: cert.pem, client_auth_type: VerifyClientCertIfGiven}
`)})
	g.trust, g.client = trust, newClient(trust)
	g.client.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{own}
	g.await("aware of the node", g.complete)
	return g
}

// slowNeighbors are clients of the scraper's address whose requests never end. The scraper connects
// anew for each scrape, which is the worst case: until its request is read, it has one of the 64
// places of new connections, and loses it if 64 others arrive meanwhile. That may happen to one
// scrape in a hundred, when all the others connect at once.
func slowNeighbors(start func(testing.TB) *target) func(testing.TB) {
	return func(t testing.TB) {
		g := start(t)
		g.client.Transport.(*http.Transport).DisableKeepAlives = true
		f := g.attackedBy(clients{"neighbor", 400})
		if len(f.failed) <= 1+len(f.times)/100 {
			f.failed = nil
		}
		g.expectHeld(t, f)
	}
}

// guesser guesses passwords.
func (g *target) guesser(ctx context.Context) {
	client := newClient(g.trust)
	client.Transport.(*http.Transport).DialContext = g.attacker().DialContext
	for pause(ctx) == nil {
		g.knock(ctx, client, live.Basic("scraper", fmt.Sprintf("%x", rand.Uint64())))
	}
}

// knock requests the metrics with a wrong authorization.
func (g *target) knock(ctx context.Context, client *http.Client, authorization string) {
	_, _ = live.Ask(ctx, client, g.url("/metrics"), "Authorization", authorization) // it may be refused or cut off
}

// expectRejected checks that a counter of rejections is above 0.
func (g *target) expectRejected(series string) {
	g.t.Helper()
	for end := time.Now().Add(honestTimeout); !g.rejects(series); { // it is served with the next tick
		if time.Now().After(end) {
			g.t.Errorf("%s stays 0", series)
			return
		}
		backOff(g.t.Context())
	}
}

// rejects reports whether such a counter is above 0.
func (g *target) rejects(series string) bool {
	a, err := g.scrape(honestTimeout)
	if err != nil {
		return false
	}
	n, err := valueOf(a.body, series)
	return err == nil && n > 0
}

// stranger sends a request each second, with another token and over another connection.
func (g *target) stranger(ctx context.Context) {
	client := newClient(g.trust)
	transport := client.Transport.(*http.Transport)
	transport.DisableKeepAlives = true
	for ; ctx.Err() == nil; backOff(ctx) {
		from := net.IPv4(127, 0, byte(rand.N(2)), byte(1+rand.N(100)*rand.N(2)))
		transport.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).DialContext
		g.knock(ctx, client, fmt.Sprintf("Bearer stranger-%x", rand.Uint64()))
	}
}

// littleMemory makes the kubelet answer with more claims than fit into a budget of 100 MiB.
func littleMemory(t testing.TB) {
	const budget = 100
	g := launchBy(t, largenode.Start(t), []string{"env", fmt.Sprintf("GOMEMLIMIT=%dMiB", budget)}, nil)
	g.most = budget << 20
	g.await("aware of the node", g.complete)
	if want := fmt.Sprintf("memory_mib=%d", budget); !strings.Contains(g.Log(), want) {
		t.Errorf("the log does not have %s", want)
	}
	largeAnswer(g, manyClaims(8000))
	g.expectRejected(`dra_exporter_input_rejected_total{input="podresources",reason="too_many"}`)
}

// largeAnswer makes the kubelet answer with more pods while clients read the page. A pod that
// starts later must be shown like all others.
func largeAnswer(g *target, more []*v1.PodResources) {
	t := g.t
	f := g.during(6*attackTime(), func(ctx context.Context) {
		setPods(t, g.node, slices.Concat(largenode.PodList(), more, []*v1.PodResources{latePod("a-late")}))
		go g.read(ctx, "/page/rows")
		select {
		case <-ctx.Done():
		case <-time.After(attackTime()):
		}
	})
	if !f.over {
		g.expectShown(`pod="a-late"`)
		setPods(t, g.node, largenode.PodList())
	}
	g.expectHeld(t, f)
}

// manyIDs returns a pod whose device plugin lists an ID for each MiB of memory.
func manyIDs() []*v1.PodResources {
	devices := &v1.ContainerDevices{ResourceName: "example.com/gpu-memory"}
	for i := range 30_000 {
		devices.DeviceIds = append(devices.DeviceIds, fmt.Sprintf("%s-_-%d", node.UUID(0), i))
	}
	container := podresourcestest.Container("main")
	container.Devices = append(container.Devices, devices)
	return []*v1.PodResources{podresourcestest.Pod("team-0", "pod-with-memory", container)}
}

func manyClaims(n int) []*v1.PodResources {
	var out []*v1.PodResources
	for i := range n {
		name := fmt.Sprintf("z-%d", i)
		share := podresourcestest.Share(
			largenode.Driver, largenode.Name, fmt.Sprintf("gpu-%d", i%largenode.Devices), "share-of-"+name,
		)
		claim := podresourcestest.Claim("team-0", name, share)
		out = append(out, podresourcestest.Pod("team-0", name, podresourcestest.Container("main", claim)))
	}
	return out
}

func manyDevices() []*v1.PodResources {
	claim := podresourcestest.Claim("team-0", "all")
	for i := range 1_000_000 {
		claim.ClaimResources = append(
			claim.ClaimResources, podresourcestest.Device(largenode.Driver, largenode.Name, fmt.Sprintf("device-%d", i)),
		)
	}
	return []*v1.PodResources{podresourcestest.Pod("team-0", "pod-with-all", podresourcestest.Container("main", claim))}
}

func manyPods() []*v1.PodResources {
	out := make([]*v1.PodResources, 1_000_000)
	for i := range out {
		out[i] = podresourcestest.Pod("team-0", fmt.Sprintf("pod-%d", i), podresourcestest.Container("main"))
	}
	return out
}

func setPods(t testing.TB, large *largenode.Node, pods []*v1.PodResources) {
	must.Do(t, large.Kubelet.SetPods(pods...))
}
