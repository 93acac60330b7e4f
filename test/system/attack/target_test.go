package attack

import (
	"crypto/x509"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// programPath is the environment variable that names the program.
const programPath = "DRA_EXPORTER"

// maxResident is the limit of the resident memory of the process in an attack, in bytes.
const maxResident = 160 << 20

// target is the program on a large node. It is killed when its resident memory exceeds the chart's
// limit.
type target struct {
	*live.Program
	t      testing.TB
	node   *largenode.Node
	client *http.Client
	trust  *x509.CertPool // nil: the program serves without TLS
	// authorization returns the Authorization header of the honest scraper; nil: it has none.
	authorization func() string
	// neighbors: its clients attack from the address of the honest scraper.
	neighbors bool

	// base are the node's pods; nil: those of the large node. With base, the kubelet serves the
	// Pods API, and pods of half a second start and end during an attack.
	base []*v1.PodResources
	pods *podresourcestest.Pods
	born int   // of these, so far: a UID is never used again
	most int64 // resident bytes

	mu   sync.Mutex
	peak int64 // resident bytes
	over bool  // it was killed for its memory
}

// newTarget starts the program on a large node and waits until it shows all of the node.
func newTarget(t testing.TB) *target {
	g := launch(t, largenode.Start(t), nil)
	g.await("aware of the node", g.complete)
	return g
}

// newTLSTarget is manyDevicesShared with TLS, and so with HTTP/2.
func newTLSTarget(t testing.TB) *target {
	node := largenode.Start(t)
	trust := live.Certificate(t, node.Dir)
	served := servePods(t, node, largenode.PodList())
	g := launch(t, node, map[string]string{
		"web.config.file": node.Write(t, "web.yaml", "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n"),
	})
	g.trust, g.client, g.pods = trust, newClient(trust), served
	g.await("aware of the node", g.complete)
	return g
}

// launch starts the program on a node and does not wait until it is ready.
func launch(t testing.TB, node *largenode.Node, flags map[string]string, args ...string) *target {
	return launchBy(t, node, nil, flags, args...)
}

// launchBy is launch with a command that becomes the program.
func launchBy(t testing.TB, node *largenode.Node, wrapper []string, flags map[string]string, args ...string) *target {
	limit, goLimit := chartLimits(t)
	merged := node.Flags().With(flags)
	maps.DeleteFunc(merged, func(_, value string) bool { return value == "" }) // the default
	line := slices.Concat(wrapper, []string{os.Getenv(programPath)}, merged.Args(), args)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "GOMEMLIMIT=" + goLimit}
	g := &target{t: t, node: node, client: newClient(nil), most: maxResident, Program: live.Launch(t, cmd)}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		g.watch(limit)
	}()
	t.Cleanup(func() {
		g.client.CloseIdleConnections()
		if *before != "" {
			g.Kill() // an older program may not end by itself
		} else if g.Running() {
			_ = g.Stop() // which live.Launch judges
		}
		<-watched
	})
	return g
}

// watch follows the resident memory until the program ends, and kills the program when it exceeds
// the limit.
func (g *target) watch(limit int64) {
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case <-g.Ended():
			return
		case <-again.C:
		}
		now, err := g.Memory("VmRSS")
		if err != nil {
			continue // it is ending
		}
		g.mu.Lock()
		g.peak = max(g.peak, now)
		g.over = now > limit
		over := g.over
		g.mu.Unlock()
		if over {
			g.Kill()
			return
		}
	}
}

// resident returns the highest resident memory so far in bytes, and whether the program was killed
// because of it.
func (g *target) resident() (peak int64, over bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.peak, g.over
}

// forgetPeak resets the highest resident memory.
func (g *target) forgetPeak() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.peak = 0
}

// logged returns the lines of the log without those about incidents, since the node's GPUs have
// errors.
func (g *target) logged() []string {
	return slices.DeleteFunc(strings.Split(g.Log(), "\n"), func(line string) bool {
		return strings.Contains(line, "msg=incident ") || strings.Contains(line, `msg="incident happens again and again"`)
	})
}

// url returns the address of a path.
func (g *target) url(path string) string {
	if g.trust != nil {
		return "https://" + g.Address + path
	}
	return "http://" + g.Address + path
}

// await retries until there is no error. It ends the test if the program ends.
func (g *target) await(what string, try func() error) {
	live.Await(g.t, 3*time.Minute, what, func() error {
		must.That(g.t, g.Running(), "not %s: the program has ended: %v", what, g.State())
		return try()
	})
}

// complete returns an error unless a scrape shows the power of all pods of the node.
func (g *target) complete() error {
	a, err := g.scrape(time.Minute)
	if err != nil {
		return err
	}
	want := largenode.Pods
	if g.base != nil {
		want = len(g.base)
	}
	if n := strings.Count(a.body, "\ndra_pod_power_watts{"); n != want {
		return fmt.Errorf("%d pods have power, want %d", n, want)
	}
	return nil
}

// chartLimits returns the memory limit of the chart, and its $GOMEMLIMIT, both in bytes.
func chartLimits(t testing.TB) (limit int64, goLimit string) {
	manifests := must.Get(os.ReadFile("../../../deployments/manifests/dra-exporter.yaml"))(t)
	for document := range strings.SplitSeq(string(manifests), "\n---\n") {
		var set appsv1.DaemonSet
		if err := yaml.Unmarshal([]byte(document), &set); err != nil || set.Kind != "DaemonSet" {
			continue // another kind
		}
		container := set.Spec.Template.Spec.Containers[0]
		limit = container.Resources.Limits.Memory().Value()
		i := slices.IndexFunc(container.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
		if i < 0 {
			break
		}
		if goLimit = container.Env[i].Value; goLimit == "" {
			goLimit = strconv.FormatInt(limit, 10) // by reference to the limit
		}
	}
	must.That(t, limit != 0 && goLimit != "", "the manifests have a limit of %d bytes and GOMEMLIMIT %q", limit, goLimit)
	return limit, goLimit
}
