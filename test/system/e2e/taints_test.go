package e2e

import (
	"fmt"
	"testing"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
)

// DeviceTaintRules taint devices in addition to the slices. If the exporter may not read them, they
// do not count as a failed source.
func TestTaintRules(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	server, kubeconfig := apiServer(t, n)
	server.Put(kubetest.TaintRules, fmt.Appendf(nil, `{"metadata":{"name":"maintenance"},"spec":{
		"deviceSelector":{"driver":%q,"device":"gpu-0"},
		"taint":{"key":"example.com/maintenance","effect":"NoExecute"}}}`, gpuDriver))
	p := start(t, n.flags(flags{"kube": "auto", "kubeconfig": kubeconfig}))
	p.eventually("tainted", func() bool {
		return p.scrape().is(1, "dra_device_tainted", "device", "gpu-0", "key", "example.com/maintenance",
			"effect", "NoExecute", "source", "rule")
	})
	m := p.scrape()
	m.want(1, "dra_exporter_source_up", "source", "taintrules")
	m.wantNone("dra_device_tainted", "device", "gpu-1", "source", "rule")
	server.Fail(func(resource string, _ bool) kubetest.Fault {
		if resource == kubetest.TaintRules {
			return kubetest.Forbidden
		}
		return kubetest.None
	})
	p.eventually("the rules are forbidden", func() bool {
		return len(p.scrape().rows("dra_device_tainted", "source", "rule")) == 0
	})
	m = p.scrape()
	m.wantNone("dra_exporter_source_up", "source", "taintrules")
	m.want(1, "dra_exporter_source_up", "source", "slices")
}
