package node

import (
	"crypto"
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
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
	key, keyErr := keyutil.MakeEllipticPrivateKeyPEM()
	proxyKey, proxyCertificate, err := newProxyCertificate()
	if err := errors.Join(keyErr, err); err != nil {
		return fmt.Errorf("make keys of the cluster: %w", err)
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

// newProxyCertificate returns a key and a self-signed certificate. With these the API server
// forwards requests and their users to aggregated API servers.
func newProxyCertificate() (key, certificate []byte, err error) {
	if key, err = keyutil.MakeEllipticPrivateKeyPEM(); err != nil {
		return nil, nil, err
	}
	private, err := keyutil.ParsePrivateKeyPEM(key)
	if err != nil {
		return nil, nil, err
	}
	signed, err := cert.NewSelfSignedCACert(cert.Config{CommonName: proxyName}, private.(crypto.Signer))
	if err != nil {
		return nil, nil, err
	}
	certificate, err = cert.EncodeCertificates(signed)
	return key, certificate, err
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
