package scenarios

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
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

// account is a ServiceAccount for an exporter, with its own ClusterRole.
type account struct {
	*namespace
	user string
	dir  string

	mu    sync.Mutex
	conns []net.Conn // The exporter's connections to the API server.
}

func (n *namespace) account(name string) *account {
	a := &account{namespace: n, user: name, dir: n.TempDir()}
	a.create()
	meta := metav1.ObjectMeta{Name: name}
	create(n, n.client.RbacV1().ClusterRoles(), &rbacv1.ClusterRole{ObjectMeta: meta})
	create(n, n.client.RbacV1().ClusterRoleBindings(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: n.name, Name: name}},
	})
	return a
}

// create creates the ServiceAccount and writes a token for it to the file that the exporter reads.
func (a *account) create() {
	accounts := a.client.CoreV1().ServiceAccounts(a.name)
	create(a.namespace, accounts, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: a.user}})
	request := &authenticationv1.TokenRequest{}
	token := must.Get(accounts.CreateToken(a.Context(), a.user, request, metav1.CreateOptions{}))(a)
	a.no(os.WriteFile(a.token()+".tmp", []byte(token.Status.Token), 0o600))
	a.no(os.Rename(a.token()+".tmp", a.token()))
}

// remove deletes the ServiceAccount. Its tokens are invalid from then on.
func (a *account) remove() {
	a.no(a.client.CoreV1().ServiceAccounts(a.name).Delete(a.Context(), a.user, metav1.DeleteOptions{}))
}

func (a *account) token() string { return filepath.Join(a.dir, "token") }

// grant sets the account's rights to exactly these.
func (a *account) grant(rights []right) {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: a.user}}
	for _, r := range rights {
		role.Rules = append(role.Rules,
			rbacv1.PolicyRule{APIGroups: []string{r.group}, Resources: []string{r.resource}, Verbs: []string{r.verb}})
	}
	must.Get(a.client.RbacV1().ClusterRoles().Update(a.Context(), role, metav1.UpdateOptions{}))(a)
}

// start starts an exporter with the account's token. The exporter reads no devices and gets the
// pods from the API server.
func (a *account) start() *program {
	return a.startWith("--kubelet.pods-socket=" + filepath.Join(a.dir, "none.sock"))
}

// startWith is like start, but with other flags; without any, the exporter gets the pods from the
// kubelet's Pods API.
func (a *account) startWith(flags ...string) *program {
	config := a.access.DeepCopy()
	for _, user := range config.AuthInfos {
		user.Token, user.TokenFile = "", a.token()
	}
	for _, server := range config.Clusters {
		server.Server = "https://" + forwarded(a.T, a.dial)
	}
	kubeconfig := filepath.Join(a.dir, "kubeconfig")
	a.no(clientcmd.WriteToFile(*config, kubeconfig))
	return startExporter(a.T,
		slices.Concat(a.common, []string{"--kubeconfig=" + kubeconfig, "--path.cdi=" + a.dir}, flags))
}

func (a *account) dial(ctx context.Context) (net.Conn, error) {
	conn, err := a.cluster.DialServer(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.conns = append(a.conns, conn)
	return conn, nil
}

// cut closes the exporter's connections. Otherwise its watches would continue: the API server
// checks the token only when a watch starts.
func (a *account) cut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, conn := range a.conns {
		_ = conn.Close() // It may already be closed.
	}
	a.conns = nil
}

// refused waits until the API server refuses the account's token. The API server caches for some
// seconds that a token is valid.
func (a *account) refused() {
	config := must.Get(a.cluster.Client())(a)
	config.BearerToken, config.BearerTokenFile = "", a.token()
	client := must.Get(kubernetes.NewForConfig(config))(a)
	eventually(a.T, "the account's token is refused", func() error {
		_, err := client.ResourceV1().ResourceSlices().List(a.Context(), metav1.ListOptions{Limit: 1})
		if apierrors.IsUnauthorized(err) {
			return nil
		}
		return fmt.Errorf("the answer is %w", err)
	})
}

// signedOut deletes the account of a running exporter and creates it again. Meanwhile the exporter
// must report that it is unauthorized, and must still show what the kubelet reports, also for a new
// pod. When its file has the new account's token, it must show everything again.
func (n *namespace) signedOut(a *account, rights []right) {
	a.grant(rights)
	p := a.start()
	n.knowsAll(p)
	a.remove()
	a.refused()
	a.cut()
	n.claim("late", request("gpu", gpudriver.ClassGPU))
	n.pod("late", podSpec("late"))
	n.phase("late", corev1.PodRunning)
	eventually(n.T, "the exporter says that it is not known, and what it knows", func() error {
		for _, source := range []string{"claims", "slices", "pods"} {
			if err := p.down(source, "unauthorized"); err != nil {
				return err
			}
		}
		return n.holdsLike(p, true)
	})
	a.create()
	n.knowsAll(p)
}

// down returns nil if a source is down and at least one of its errors had this reason.
func (p *program) down(source, reason string) error {
	return errors.Join(p.has("dra_exporter_source_up", 0, "source", source),
		p.counted("dra_exporter_source_errors_total", "source", source, "reason", reason))
}

// counted returns nil if the only series with these labels is at least 1.
func (p *program) counted(name string, labels ...string) error {
	n, err := p.value(name, labels...)
	if err == nil && n < 1 {
		err = fmt.Errorf("%s%q is %v", name, labels, n)
	}
	return err
}
