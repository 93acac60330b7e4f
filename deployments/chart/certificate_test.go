package chart

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

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
	volumes := o.daemonSet.Spec.Template.Spec.Volumes
	web := volumes[slices.IndexFunc(volumes, func(v corev1.Volume) bool { return v.Name == "web" })]
	config := o.all["ConfigMap "+web.Projected.Sources[0].ConfigMap.Name].(*corev1.ConfigMap).Data["web-config.yml"]
	if !strings.Contains(config, "cert_file: tls.crt") {
		t.Error(config)
	}
}
