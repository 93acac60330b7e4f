package node

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

// The addresses of the control plane inside the network namespace.
const (
	etcdURL       = "http://127.0.0.1:2379"
	serverAddress = "127.0.0.1:6443"
	serverURL     = "https://" + serverAddress
)

// The numbers of ResourceSlices: of the simulated GPUs, and of the network interfaces and CPUs.
const (
	gpuSlices  = 2
	realSlices = 2
)

// kubernetes returns the components in the order in which they start.
func (n *node) kubernetes() []*component {
	return []*component{
		n.runtime(),
		{name: "etcd", ready: n.answers(etcdURL + "/health"), args: []string{
			n.Program, "etcd",
			"--data-dir=" + n.path("etcd"),
			"--unsafe-no-fsync",
			"--log-level=warn",
			"--listen-client-urls=" + etcdURL,
			"--advertise-client-urls=" + etcdURL,
			"--listen-peer-urls=http://127.0.0.1:2380",
		}},
		{name: "kube-apiserver", ready: n.answers(serverURL + "/readyz"), args: n.apiServer()},
		{name: "kube-controller-manager", ready: n.hasServiceAccount, args: n.gated(
			n.Program, "kube-controller-manager",
			"--kubeconfig="+n.path("kubeconfig"),
			"--cert-dir="+n.path("certs", "controller-manager"),
			"--leader-elect=false",
			"--use-service-account-credentials=false",
			"--service-account-private-key-file="+n.path("service-account.key"),
			"--root-ca-file="+n.path("certs", "apiserver", "apiserver.crt"),
			"--kube-api-qps=500",
			"--kube-api-burst=1000",
		)},
		{name: "kube-scheduler", ready: n.answers("https://127.0.0.1:10259/healthz"), args: n.gated(
			n.Program, "kube-scheduler",
			"--config="+n.path("scheduler.yaml"),
			"--cert-dir="+n.path("certs", "scheduler"),
			"--authentication-kubeconfig="+n.path("kubeconfig"),
			"--authorization-kubeconfig="+n.path("kubeconfig"),
		)},
		{
			name: "kubelet", env: n.busEnv(), ready: connects(n.path("kubelet", "pod-resources", "kubelet.sock")),
			args: []string{
				n.Kubelet, "kubelet",
				"--config=" + n.path("kubelet.yaml"),
				"--kubeconfig=" + n.path("kubeconfig"),
				"--root-dir=" + n.path("kubelet"),
				"--cert-dir=" + n.path("certs", "kubelet"),
				"--hostname-override=" + Name,
				"--node-ip=" + Address,
			},
		},
		{name: "driver", ready: connects(n.path("kubelet", "plugins", gpudriver.Name, "dra.sock")), args: []string{
			n.Self, "driver", "-dir=" + n.Dir, "-containerd=" + n.Containerd,
		}},
	}
}

// runtime returns the container runtime.
func (n *node) runtime() *component {
	if n.Containerd != "" {
		return n.containerd()
	}
	return &component{name: "cri", args: []string{n.Program, "cri", n.runtimeSocket()}, ready: connects(n.runtimeSocket())}
}

// busEnv returns the variable with the address of the D-Bus on which the kubelet finds logind.
func (n *node) busEnv() []string {
	if n.Bus == "" {
		return nil
	}
	return []string{"DBUS_SYSTEM_BUS_ADDRESS=" + n.Bus}
}

func (n *node) runtimeSocket() string {
	if n.Containerd != "" {
		return ContainerdSocket
	}
	return n.path(FakeSocket)
}

// gates returns the feature gates to set.
func (n *node) gates() []string {
	return strings.FieldsFunc(n.Gates, func(r rune) bool { return r == ',' })
}

// gated adds the feature gates to the command line of a control plane component.
func (n *node) gated(args ...string) []string {
	for _, gate := range n.gates() {
		args = append(args, "--feature-gates="+gate+"=true")
	}
	return args
}

func (n *node) apiServer() []string {
	args := n.gated(
		n.Program, "kube-apiserver",
		"--etcd-servers="+etcdURL,
		"--bind-address=127.0.0.1",
		"--secure-port=6443",
		"--advertise-address="+Address,
		"--endpoint-reconciler-type=none",
		"--cert-dir="+n.path("certs", "apiserver"),
		"--token-auth-file="+n.path("tokens.csv"),
		"--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+n.path("service-account.key"),
		"--service-account-signing-key-file="+n.path("service-account.key"),
		"--service-cluster-ip-range="+serviceRange,
		"--requestheader-client-ca-file="+n.path("front-proxy.crt"),
		"--requestheader-allowed-names="+proxyName,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+n.path("front-proxy.crt"),
		"--proxy-client-key-file="+n.path("front-proxy.key"),
		"--allow-privileged=true",
		"--kubelet-preferred-address-types=InternalIP",
	)
	if n.Gates != "" {
		args = append(args, "--runtime-config=api/beta=true")
	}
	return args
}

// connects returns a function that reports whether a server listens on a Unix socket. The socket's
// file alone proves nothing: it remains after the server has ended.
func connects(path string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// answers returns a function that reports whether a URL returns status 200.
func (n *node) answers(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := n.get(ctx, url)
		return err
	}
}

func (n *node) hasServiceAccount(ctx context.Context) error {
	_, err := n.get(ctx, serverURL+"/api/v1/namespaces/default/serviceaccounts/default")
	return err
}

// isReady returns nil if the node is ready for pods.
func (n *node) isReady(ctx context.Context) error {
	body, err := n.get(ctx, serverURL+"/api/v1/nodes/"+Name)
	if err != nil {
		return err
	}
	var object struct {
		Status struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := json.Unmarshal(body, &object); err != nil {
		return fmt.Errorf("decode the node: %w", err)
	}
	for _, c := range object.Status.Conditions {
		if c.Type == "Ready" && c.Status == "True" {
			return nil
		}
		if c.Type == "Ready" {
			return fmt.Errorf("the node is not ready: %s", c.Message)
		}
	}
	return errors.New("the node has no condition Ready")
}

func (n *node) hasSlices(ctx context.Context) error {
	body, err := n.get(ctx, serverURL+"/apis/resource.k8s.io/v1/resourceslices")
	if err != nil {
		return err
	}
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal(body, &list); err != nil {
		return fmt.Errorf("decode the ResourceSlices: %w", err)
	}
	want := gpuSlices
	if n.Containerd != "" {
		want += realSlices
	}
	if len(list.Items) < want {
		return fmt.Errorf("%d ResourceSlices, want %d", len(list.Items), want)
	}
	return nil
}

// get sends a request as the administrator. It does not verify the certificate, because no other
// server is in this network namespace.
func (n *node) get(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	client := http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true,
	}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s: %.200s", url, resp.Status, body)
	}
	return body, nil
}
