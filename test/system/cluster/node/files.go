package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"time"

	"sigs.k8s.io/yaml"
)

// adminToken need not be secret: only the cluster's network namespace can reach the API server.
const adminToken = "admin"

// proxyName is the name by which the API server identifies itself to aggregated API servers.
const proxyName = "front-proxy"

// object is a part of a YAML document.
type object = map[string]any

// writeFiles writes the files that the components read. The components run in an empty folder,
// because the kubelet may delete *.* in its working directory: it does so when it removes a
// container for which the runtime reports no log path (removeContainerLog in
// pkg/kubelet/kuberuntime).
func (n *node) writeFiles() error {
	for _, folder := range []string{"log", "cdi", "pods", "kubelet", "certs", "empty", Manifests} {
		if err := os.MkdirAll(n.path(folder), 0o755); err != nil {
			return fmt.Errorf("make a folder of the cluster: %w", err)
		}
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	proxyKey, proxyCertificate, err := newProxyCertificate()
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"service-account.key": key,
		"front-proxy.key":     proxyKey,
		"front-proxy.crt":     proxyCertificate,
		"tokens.csv":          []byte(adminToken + ",admin,admin,system:masters\n"),
	}
	for name, content := range map[string]object{
		"kubeconfig":     kubeconfig(),
		"scheduler.yaml": n.schedulerConfig(),
		"kubelet.yaml":   n.kubeletConfig(),
	} {
		if files[name], err = yaml.Marshal(content); err != nil {
			return fmt.Errorf("encode %s: %w", name, err)
		}
	}
	for name, content := range files {
		if err := os.WriteFile(n.path(name), content, 0o600); err != nil {
			return fmt.Errorf("write a file of the cluster: %w", err)
		}
	}
	if n.Containerd != "" {
		return n.writeContainerd()
	}
	return nil
}

// newKey returns a PEM-encoded key that signs the tokens of ServiceAccounts.
func newKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of ServiceAccounts: %w", err)
	}
	return encodeKey(key)
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// newProxyCertificate returns a key and a self-signed certificate. With these the API server
// forwards requests and their users to aggregated API servers.
func newProxyCertificate() (key, certificate []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the key of the front proxy: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: proxyName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return nil, nil, fmt.Errorf("make the certificate of the front proxy: %w", err)
	}
	key, err = encodeKey(private)
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

func kubeconfig() object {
	return object{
		"apiVersion":      "v1",
		"kind":            "Config",
		"current-context": "cluster",
		"clusters": []object{{
			"name":    "cluster",
			"cluster": object{"server": serverURL, "insecure-skip-tls-verify": true},
		}},
		"users":    []object{{"name": "admin", "user": object{"token": adminToken}}},
		"contexts": []object{{"name": "cluster", "context": object{"cluster": "cluster", "user": "admin"}}},
	}
}

// schedulerConfig raises the client's rate limits: with the default limits, scheduling 100 pods
// takes more than a minute.
func (n *node) schedulerConfig() object {
	return object{
		"apiVersion":       "kubescheduler.config.k8s.io/v1",
		"kind":             "KubeSchedulerConfiguration",
		"leaderElection":   object{"leaderElect": false},
		"clientConnection": object{"kubeconfig": n.path("kubeconfig"), "qps": 500, "burst": 1000},
	}
}

func (n *node) kubeletConfig() object {
	config := object{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + n.runtimeSocket(),
		"podLogsDir":               n.path("pods"),
		"staticPodPath":            n.path(Manifests),
		"fileCheckFrequency":       "1s",
		"address":                  Address,
		"authentication":           object{"anonymous": object{"enabled": true}, "webhook": object{"enabled": false}},
		"authorization":            object{"mode": "AlwaysAllow"},
		"cgroupDriver":             "cgroupfs",
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"makeIPTablesUtilChains":   false,
		"resolvConf":               "",
		"syncFrequency":            "1s",
		"evictionHard":             object{"memory.available": "1Mi"},
		"kubeAPIQPS":               500,
		"kubeAPIBurst":             1000,
		"maxPods":                  250,
	}
	if n.Containerd == "" {
		config["cgroupsPerQOS"], config["enforceNodeAllocatable"] = false, []string{}
	}
	if n.Bus != "" {
		config["shutdownGracePeriod"], config["shutdownGracePeriodCriticalPods"] = "30s", "5s"
	}
	gates := object{}
	for _, gate := range n.gates() {
		gates[gate] = true
	}
	if n.Kubelet != n.Program { // Gates that the scenarios need and that are on by default since 1.36.
		for _, gate := range []string{"ResourceHealthStatus", "DRAExtendedResource", "DRAConsumableCapacity"} {
			gates[gate] = true
		}
	}
	if n.Rootless {
		gates["KubeletInUserNamespace"] = true
	}
	config["featureGates"] = gates
	return config
}
