package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/live"
)

// gateway starts the gateway with an API server.
func gateway(t *testing.T, kubeconfig string, more ...string) *program {
	args := append([]string{
		"gateway", "--kubeconfig=" + kubeconfig, "--exporter.namespace=dra", "--web.listen-address=127.0.0.1:0",
	}, more...)
	return &program{
		Program: live.Launch(t, command(context.Background(), args)), t: t,
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: startTimeout},
	}
}

// exporters adds an EndpointSlice of the exporters' Service.
func exporters(api *kubetest.Server, port string, endpoints []string) {
	api.Put(kubetest.Endpoints, fmt.Appendf(nil, `{"metadata":{"namespace":"dra","name":"a","labels":
		{"kubernetes.io/service-name":"dra-exporter"}},"addressType":"IPv4","ports":[{"name":"metrics","port":%s}],
		"endpoints":[%s]}`, port, strings.Join(endpoints, ",")))
}

func endpointOn(node, address string) string {
	return fmt.Sprintf(`{"nodeName":%q,"addresses":[%q],"targetRef":{"kind":"Pod","name":"p"}}`, node, address)
}
