package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// A node of Kubernetes 1.27 to 1.30 with Spiderpool: the kubelet reports only a CDI device and a
// class. The other data come from the CDI spec and, if served, the claim of v1alpha2.
func TestClassic(t *testing.T) {
	t.Parallel()
	const (
		uid    = "1e15705a-62fe-4694-8535-93a5f0ccf996"
		driver = "netresources.spidernet.io"
	)
	for name, tc := range map[string]struct{ cdi, want string }{
		"UID in the name": {uid, driver},
		"UID in the spec": {"nic-0", "real.spidernet.io"}, // and the driver from the claim
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.write("cdi/nic.json",
				strings.NewReplacer("NAME", tc.cdi, "VALUE", uid).Replace(`{
				"cdiVersion":"0.6.0","kind":"k8s.netresources.spidernet.io/claim","devices":[
				{"name":"NAME","containerEdits":{"env":["DRA_CLAIM_UID=VALUE"]}}]}`))
			n.setPods(podresourcestest.Pod("ns", "pod", podresourcestest.Container("main",
				podresourcestest.Classic("ns", "nic", "spider", "k8s.netresources.spidernet.io/claim="+tc.cdi))))
			const pod = "5a0b5b6e-7e3a-4c28-9d0e-3d1f0c9f3a11"
			n.addPod("ns", "pod", pod)
			traffic := func(bytes int) {
				const header = "Inter-|   Receive                                                |  Transmit\n face |bytes    " +
					"packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n"
				n.write("proc/42/net/dev",
					fmt.Sprintf("%s    lo: 9 0 0 0 0 0 0 0 9 0 0 0 0 0 0 0\n  eth0: %d 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n", header,
						bytes))
			}
			n.mkdir("proc/42/net")
			n.mkdir("proc/1/net")
			n.write("proc/1/net/dev", "")
			n.write("proc/42/cgroup",
				"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"+strings.ReplaceAll(pod, "-", "_")+
					".slice/cri-containerd-x.scope\n")
			n.write("proc/42/stat", "42 (pause) S 1"+strings.Repeat(" 0", 17)+" 4711 0\n") // started at tick 4711
			traffic(1000)
			more := flags{}
			if tc.want != driver {
				server, err := kubetest.New()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(server.Close)
				server.Serve("v1alpha2")
				server.Put(kubetest.Claims,
					[]byte(`{"apiVersion":"resource.k8s.io/v1alpha2","kind":"ResourceClaim","metadata":{"name":"nic","namespace":"ns"},
					"spec":{"resourceClassName":"spider"},"status":{"driverName":"real.spidernet.io",
					"allocation":{"resourceHandles":[{"driverName":"real.spidernet.io"}]}}}`))
				more = flags{"kube": "auto", "kubeconfig": n.write("kubeconfig", string(server.Kubeconfig()))}
			}
			p := start(t, n.flags(more))
			p.eventually("known", func() bool {
				m := p.scrape()
				return m.is(1, "dra_claim_info", "resourceclaim_name", "nic", "uid", uid) &&
					m.is(1, "dra_claim_device_info", "driver", tc.want, "pool", "", "device", tc.cdi, "device_class", "spider") &&
					m.is(1, "dra_pod_claim_info", "pod", "pod", "resourceclaim_name", "nic", "driver", tc.want)
			})
			if tc.want != driver {
				return
			}
			// The traffic of the pod's own network is attributed to the claim.
			p.eventually("read",
				func() bool { return p.scrape().is(0, "dra_pod_io_bytes_total", "pod", "pod", "direction", "receive") })
			traffic(5000)
			p.eventually("charged", func() bool {
				return p.scrape().is(4000, "dra_claim_io_bytes_total", "resourceclaim_name", "nic", "link", "network", "direction",
					"receive")
			})
		})
	}
}
