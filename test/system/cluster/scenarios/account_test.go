package scenarios

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

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
