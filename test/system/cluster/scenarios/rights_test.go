package scenarios

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

// manifests is the file of the manifests that are generated from the chart.
const manifests = "../../../../deployments/manifests/dra-exporter.yaml"

// right is one verb on one resource.
type right struct{ group, resource, verb string }

// byName is the only right on pods that an exporter needs if the kubelet serves the Pods API.
func byName() right { return right{"", "pods", "get"} }

// source returns the exporter's source that needs the right.
func (r right) source() string {
	return strings.TrimPrefix(strings.TrimPrefix(r.resource, "resource"), "device")
}

// optional reports whether, without the right, the source is unused instead of down.
func (r right) optional() bool { return r.resource == "devicetaintrules" }

// streamed reports whether the API server lets the exporter stream all objects without the right,
// by one to watch them. The right is for API servers before 1.34.
func (r right) streamed() bool { return r.verb == "list" }

// chartRights returns the rights in the chart's ClusterRole.
func chartRights(t *testing.T) []right {
	content := must.Get(os.ReadFile(manifests))(t)
	var rights []right
	for document := range bytes.SplitSeq(content, []byte("\n---\n")) {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal(document, &role); err != nil || role.Kind != "ClusterRole" {
			continue
		}
		for _, rule := range role.Rules {
			for _, verb := range rule.Verbs {
				rights = append(rights, right{group: rule.APIGroups[0], resource: rule.Resources[0], verb: verb})
			}
		}
	}
	return rights
}

// testRights runs exporters as ServiceAccounts. An exporter with exactly the chart's rights must
// show the same as the administrator's. An exporter that lacks a right must report that and still
// show what the kubelet reports. It must show everything when it gets the right, or if the API
// server does not ask for it.
func testRights(t *testing.T, w *world) {
	rights := chartRights(t)
	want := []right{
		byName(),
		{"", "pods", "list"},
		{"", "pods", "watch"},
		{"resource.k8s.io", "resourceslices", "list"},
		{"resource.k8s.io", "resourceslices", "watch"},
		{"resource.k8s.io", "resourceclaims", "get"},
		{"resource.k8s.io", "devicetaintrules", "list"},
		{"resource.k8s.io", "devicetaintrules", "watch"},
	}
	must.That(t, slices.Equal(rights, want), "the chart asks for %v, want %v", rights, want)
	n := w.namespace(t, "rights", "resource.kubernetes.io/admin-access")
	n.claim("part", memory(request("part", gpudriver.ClassShared), 1, "10Gi"))
	n.claim("monitor", monitor(request("all", gpudriver.ClassShared)))
	n.template("made", request("gpu", gpudriver.ClassGPU))
	n.pod("part", podSpec("part"))
	n.pod("monitor", podSpec("monitor"))
	n.pod("made", templateSpec("made"))
	n.running(3)
	n.agree(1 + gpudriver.Shared + 1)
	t.Run("Exactly", func(t *testing.T) {
		for i := -1; i < len(rights); i++ {
			if i >= 0 && rights[i] == byName() { // These exporters list the pods and do not get single ones.
				continue
			}
			name := "All"
			if i >= 0 {
				name = "Without " + rights[i].verb + " " + rights[i].resource
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				n := &namespace{T: t, world: w, name: n.name}
				account := n.account(fmt.Sprintf("exporter-%d", i+1))
				switch {
				case i < 0:
					account.grant(rights)
					n.knowsAll(account.start())
				case rights[i].streamed():
					account.grant(without(rights, rights[i]))
					n.knowsAll(account.start(), rights[i].source())
				default:
					n.lacks(account, rights, rights[i])
				}
			})
		}
		t.Run("Without the right to list pods", func(t *testing.T) {
			t.Parallel()
			if !kubeletSince(podsAPISince) {
				return // It lists them in place of the kubelet.
			}
			n := &namespace{T: t, world: w, name: n.name}
			account := n.account("exporter-by-name")
			account.grant(slices.DeleteFunc(slices.Clone(rights), func(r right) bool {
				return r.resource == "pods" && r != byName()
			}))
			n.knowsAll(account.startWith())
		})
		t.Run("With a token that ends", func(t *testing.T) {
			t.Parallel()
			n := &namespace{T: t, world: w, name: n.name}
			n.signedOut(n.account("exporter-anew"), rights)
		})
	})
	n.clear()
}

// monitor changes a request to admin access to all devices of the class.
func monitor(r resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	r.Exactly.AllocationMode, r.Exactly.AdminAccess = resourceapi.DeviceAllocationModeAll, ptr.To(true)
	return r
}

// lacks starts an exporter without one of the rights, and grants the right later.
func (n *namespace) lacks(a *account, rights []right, missing right) {
	a.grant(without(rights, missing))
	p := a.start()
	eventually(n.T, "the exporter says what it may not, and says what it knows", func() error {
		if missing.optional() {
			if up, err := p.value("dra_exporter_source_up", "source", missing.source()); err == nil {
				return fmt.Errorf("source_up of %s, which is optional, is %v", missing.source(), up)
			}
		} else if err := p.down(missing.source(), "forbidden"); err != nil {
			return err
		}
		for _, r := range rights {
			if r.source() == missing.source() {
				continue
			}
			if err := p.has("dra_exporter_source_up", 1, "source", r.source()); err != nil {
				return err
			}
		}
		return n.holdsLike(p, missing.source() != "claims" || kubeletSince(sharesSince))
	})
	a.grant(rights)
	n.knowsAll(p)
}

// without returns the rights without one of them.
func without(rights []right, missing right) []right {
	return slices.DeleteFunc(slices.Clone(rights), func(r right) bool { return r == missing })
}

// holdsLike compares with the administrator's exporter which pods hold which devices by which
// claims, and, if shares is true, which shares.
func (n *namespace) holdsLike(p *program, shares bool) error {
	admin, err := n.exporter.report()
	got, gotErr := p.report()
	if err := errors.Join(err, gotErr); err != nil {
		return err
	}
	asKubelet := gocmp.Transformer("asKubelet", func(h hold) [4]string {
		if !shares {
			h.Share = ""
		}
		return [4]string{h.Pod, h.Claim, h.Device, h.Share}
	})
	if diff := gocmp.Diff(holdsOfExporter(admin, n.name), holdsOfExporter(got, n.name), asKubelet); diff != "" {
		return fmt.Errorf("who holds what (-administrator +exporter):\n%s", diff)
	}
	return nil
}

// knowsAll waits until an exporter's sources, and further ones, are up and it shows the same facts
// as the administrator's exporter.
func (n *namespace) knowsAll(p *program, more ...string) {
	eventually(n.T, "the exporter knows what the administrator's knows", func() error {
		for _, source := range append([]string{"slices", "claims", "pods"}, more...) {
			if err := p.has("dra_exporter_source_up", 1, "source", source); err != nil {
				return err
			}
		}
		want, err := n.facts(n.exporter)
		got, gotErr := n.facts(p)
		if err := errors.Join(err, gotErr); err != nil {
			return err
		}
		if diff := gocmp.Diff(want, got); diff != "" || len(want) == 0 {
			return fmt.Errorf("%d facts (-administrator +exporter):\n%s", len(want), diff)
		}
		return nil
	})
}

// facts returns the series about the namespace's claims and pods, and those about devices that come
// from ResourceSlices.
func (n *namespace) facts(p *program) (map[string]float64, error) {
	families, err := p.families()
	if err != nil {
		return nil, err
	}
	facts := map[string]float64{}
	for _, name := range []string{
		"dra_claim_info", "dra_claim_device_info", "dra_claim_consumed_capacity", "dra_claim_allocated_timestamp_seconds",
		"dra_pod_info", "dra_pod_claim_info", "dra_device_capacity", "dra_device_tainted",
	} {
		for _, m := range families[name].GetMetric() {
			if ns := labelsOf(m)["namespace"]; ns == n.name || strings.HasPrefix(name, "dra_device_") {
				facts[name+fmt.Sprint(labelsOf(m))] = m.GetGauge().GetValue()
			}
		}
	}
	return facts, nil
}
