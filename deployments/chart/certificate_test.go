package chart

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// clientSettings are the settings with which the gateway asks exporters.
type clientSettings struct {
	Authorization struct {
		File string `json:"credentials_file"`
	} `json:"authorization"`
	TLS struct {
		CA         string `json:"ca_file"`
		ServerName string `json:"server_name"`
		Skip       bool   `json:"insecure_skip_verify"`
	} `json:"tls_config"`
}

func settingsOf(t *testing.T, o objects, secret, key string) (out clientSettings) {
	t.Helper()
	text := o.all["Secret "+secret].(*corev1.Secret).StringData[key]
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// volume returns a volume of a pod by name, and where it is mounted.
func volume(t *testing.T, pod *corev1.PodSpec, name string) (corev1.Volume, string) {
	t.Helper()
	at := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	mount := slices.IndexFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name })
	if at < 0 || mount < 0 {
		t.Fatalf("no volume %s that is mounted", name)
	}
	return pod.Volumes[at], pod.Containers[0].VolumeMounts[mount].MountPath
}

// The gateway's own token is only for exporters, and is not that for the API server.
func TestTokenOfGateway(t *testing.T) {
	o := renderObjects(t, combinations()["certificate"])
	pod := &o.all["Deployment test-dra-exporter-gateway"].(*appsv1.Deployment).Spec.Template.Spec
	v, at := volume(t, pod, "token")
	settings := settingsOf(t, o, "test-dra-exporter-gateway", "http.yaml")
	token := v.Projected.Sources[0].ServiceAccountToken
	if token.Audience != "dra-exporter" || at+"/"+token.Path != settings.Authorization.File {
		t.Errorf("the token %+v at %s, and the settings %+v", token, at, settings)
	}
}

// The certificate that the chart generates is valid for the name by which the gateway, the monitor
// and helm test verify it, with the CA that they have.
func TestGeneratedCertificate(t *testing.T) {
	o := renderObjects(t, combinations()["certificate"])
	secret := o.all["Secret test-dra-exporter-tls"].(*corev1.Secret)
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	for name, valid := range map[string]bool{
		"test-dra-exporter.monitoring.svc": true, "other.monitoring.svc": false,
	} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); (err == nil) != valid {
			t.Errorf("for %s: %v", name, err)
		}
	}
	if _, hasKey := secret.Data["ca.key"]; hasKey || leaf.IsCA {
		t.Error("further certificates can be made")
	}
	v, at := volume(t, &o.daemonSet.Spec.Template.Spec, "web")
	if v.Projected.Sources[1].Secret.Name != secret.Name || at != "/etc/dra-exporter/web" {
		t.Errorf("the exporters have %+v at %s", v, at)
	}
	config := o.all["ConfigMap "+v.Projected.Sources[0].ConfigMap.Name].(*corev1.ConfigMap).Data["web-config.yml"]
	if !strings.Contains(config, "cert_file: tls.crt") {
		t.Error(config)
	}
}

// Where the chart knows a CA, all clients verify the certificate by it. Without one they do not.
func TestClientsVerify(t *testing.T) {
	for name, want := range map[string]struct{ secret, key, server string }{
		"certificate":                 {"test-dra-exporter-tls", "ca.crt", "test-dra-exporter.monitoring.svc"},
		"certificate of cert-manager": {"test-dra-exporter-tls", "ca.crt", "test-dra-exporter.monitoring.svc"},
		"certificate of a Secret":     {"web", "ca.pem", "dra"},
		"gateway":                     {},
	} {
		o := renderObjects(t, combinations()[name])
		pods := map[string]*corev1.PodSpec{
			"test-dra-exporter-gateway": &o.all["Deployment test-dra-exporter-gateway"].(*appsv1.Deployment).Spec.Template.Spec,
			"test-dra-exporter-test":    &o.all["Pod test-dra-exporter-test"].(*corev1.Pod).Spec,
		}
		for secret, pod := range pods {
			settings := settingsOf(t, o, secret, "http.yaml").TLS
			if settings.Skip != (want.secret == "") || settings.ServerName != want.server {
				t.Errorf("%s: %s has %+v", name, secret, settings)
			}
			if want.secret == "" {
				continue
			}
			v, at := volume(t, pod, "ca")
			item := v.Secret.Items[0]
			if v.Secret.SecretName != want.secret || item.Key != want.key || at+"/"+item.Path != settings.CA {
				t.Errorf("%s: %s has %+v at %s, and %+v", name, secret, v, at, settings)
			}
		}
		if o.monitor != nil && want.secret != "" {
			config := o.monitor.Spec.PodMetricsEndpoints[0].TLSConfig
			if config.CA.Secret.Name != want.secret || config.CA.Secret.Key != want.key || *config.ServerName != want.server {
				t.Errorf("%s: the monitor has %+v", name, config)
			}
		}
	}
	both := values{"web": values{"secretName": "web", "certificate": values{"from": "generated"}}}
	if _, err := renderShipped(Release{Name: "a", Namespace: "x", Values: both}, false); err == nil {
		t.Error("two sources of the server's settings are rendered")
	}
}
