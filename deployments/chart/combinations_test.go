package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// With every combination of values, the pod has what it needs and not more, and each object has the
// common labels. Each combination is rendered once.
func TestCombinations(t *testing.T) {
	t.Parallel()
	for name, v := range combinations() {
		t.Run(name, func(t *testing.T) {
			v["commonLabels"] = values{"team": "infra"}
			o := renderObjects(t, v)
			pod := &o.daemonSet.Spec.Template.Spec
			checkPaths(t, &pod.Containers[0])
			checkPodSecurity(t, name, &o)
			checkLeastPrivilege(t, v, pod)
			for key, object := range o.all {
				if got := object.(metav1.Object).GetLabels(); got["team"] != "infra" {
					t.Errorf("%s has the labels %v", key, got)
				}
			}
		})
	}
}

// sampled are the combinations, with -short every third one.
func sampled() map[string]values {
	all := combinations()
	if testing.Short() {
		for i, name := range slices.Sorted(maps.Keys(all)) {
			if i%3 != 0 {
				delete(all, name)
			}
		}
	}
	return all
}

// combinations are sets of values that users choose.
func combinations() map[string]values {
	endpoints := values{"endpoints": []any{values{
		"name": "dcgm", "url": "http://dcgm-exporter.gpu-operator:9400/metrics",
		"preset": "dcgm-exporter",
	}}}
	return map[string]values{
		"defaults":     {},
		"nvidia":       {"vendor": "nvidia", "sources": values{"scrape": endpoints}},
		"nvidia admin": {"vendor": "nvidia", "adminAccess": values{"enabled": true}},
		"short pods":   {"podMinLifetime": "90s"},
		"amd":          {"vendor": "amd", "adminAccess": values{"enabled": true}},
		"DCGM": {
			"vendor": "nvidia",
			"sources": values{"dcgm": values{
				"address": "nvidia-dcgm.gpu-operator:5555", "profiling": true,
				"library": "/usr/lib/x86_64-linux-gnu/libdcgm.so.4",
			}},
		},
		"intel":   {"vendor": "intel"},
		"network": {"vendor": "network", "hostPID": true},
		"inspect": {"vendor": "amd", "inspectProcesses": true},
		"log":     {"vendor": "nvidia", "kernelLog": true},
		"cpu":     {"vendor": "cpu"},
		"plugins": {"kubelet": values{"plugins": true}},
		"no API":  {"kube": values{"enabled": false}, "inventory": values{"configMapName": "slices"}},
		"monitoring": {
			"podMonitor": values{
				"enabled": true, "labels": values{"release": "prometheus"},
				"endpoint": values{"tlsConfig": values{"insecureSkipVerify": true}},
			},
			"prometheusRule": values{"enabled": true}, "dashboards": values{"enabled": true},
			"networkPolicy": values{"enabled": true},
		},
		"service monitor":  {"serviceMonitor": values{"enabled": true}},
		"grafana operator": {"dashboards": values{"enabled": true, "operator": values{"enabled": true}}},
		"library": {
			"vendor": "nvidia",
			"nvidia": values{"library": "/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1", "privileged": true},
		},
		"MIG":          {"vendor": "nvidia", "nvidia": values{"migMonitor": true}},
		"vendor nodes": {"vendor": "nvidia", "onlyOnVendorNodes": true},
		"authorization": {
			"web": values{
				"secretName": "web", "tls": true,
				"kubeAuthorization": values{
					"enabled":  true,
					"scrapers": []any{values{"namespace": "monitoring", "name": "prometheus"}},
				},
			},
			"podMonitor": values{"enabled": true, "endpoint": values{"tlsConfig": values{"insecureSkipVerify": true}}},
		},
		"password": {
			"web":  values{"secretName": "web", "tcpProbes": true},
			"test": values{"httpConfig": values{"basic_auth": values{"username": "a", "password": "b"}}},
		},
		"incidents":      {"incidents": values{"events": true, "dir": "/var/lib/dra-exporter"}},
		"incidents kept": {"incidents": values{"dir": "emptyDir"}},
		"gateway": {
			"gateway": values{
				"enabled": true, "url": "https://dra.example.com", "secretName": "gateway-web",
				"proxy":     values{"clientNames": []any{"proxy"}, "prefix": "oidc:"},
				"ingress":   values{"enabled": true, "host": "dra.example.com", "tlsSecretName": "tls"},
				"httpRoute": values{"enabled": true, "parentRefs": []any{values{"name": "edge"}}},
			},
			"web":           values{"secretName": "web", "tls": true, "kubeAuthorization": values{"enabled": true}},
			"networkPolicy": values{"enabled": true, "from": []any{values{"namespaceSelector": values{}}}},
		},
		"gateway with a proxy": {"gateway": values{
			"enabled": true, "proxy": values{"loopback": true},
			"extraContainers": []any{values{
				"name": "proxy", "image": "quay.io/oauth2-proxy/oauth2-proxy",
				"ports": []any{values{"name": "http", "containerPort": 4180}},
			}},
		}},
		"no state": {"state": values{"enabled": false}},
		"groups":   {"metrics": values{"errors": false, "pods": "info", "quantitySource": "estimates"}},
		"TLS":      {"web": values{"secretName": "web", "tls": true}, "podMonitor": values{"enabled": true}},
		"certificate": {
			"web":     values{"certificate": values{"from": "generated"}, "kubeAuthorization": values{"enabled": true}},
			"gateway": values{"enabled": true}, "podMonitor": values{"enabled": true},
		},
		"certificate of cert-manager": {
			"web": values{"certificate": values{"from": "certManager"}}, "gateway": values{"enabled": true},
		},
		"certificate of an issuer": {"web": values{"certificate": values{
			"from": "certManager", "issuerRef": values{"kind": "ClusterIssuer", "name": "internal"},
		}}},
		"certificate of a Secret": {
			"web":     values{"secretName": "web", "tls": true, "certificate": values{"caKey": "ca.pem", "serverName": "dra"}},
			"gateway": values{"enabled": true}, "serviceMonitor": values{"enabled": true},
		},
		"labels": {"exportLabels": values{
			"pods": []any{"app.kubernetes.io/name"}, "claims": []any{"team"},
			"podAnnotations": []any{"example.com/idle-ok"},
		}},
		"extras": {
			"image":             values{"digest": "sha256:" + strings.Repeat("0", 64)},
			"extraArgs":         []any{"--web.pprof"},
			"extraEnv":          []any{values{"name": "A", "value": "b"}},
			"extraVolumes":      []any{values{"name": "x", "emptyDir": values{}}},
			"extraVolumeMounts": []any{values{"name": "x", "mountPath": "/x"}},
			"affinity":          values{"nodeAffinity": values{}},
			"nodeSelector":      values{"a": "b"},
			"imagePullSecrets":  []any{values{"name": "s"}},
			"networkPolicy":     values{"enabled": true, "from": []any{values{"namespaceSelector": values{}}}},
			"serviceAccount":    values{"create": false, "name": "mine"}, "rbac": values{"create": false},
			"service": values{"enabled": false},
		},
	}
}
