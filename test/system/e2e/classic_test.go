package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// A kubelet of 1.27 to 1.30 names a claim, its class and CDI devices. The claim and its pod are
// shown; that nothing is known of the device is counted, and said with the remedy.
func TestClassic(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	claim := podresourcestest.Claim("ns", "nic", podresourcestest.Device("", "", "", "k8s.nic.example.com/claim=one"))
	claim.ProtoReflect().SetUnknown([]byte("\x0a\x06spider")) // the class, in a field that is not defined any more
	n.setPods(podresourcestest.Pod("ns", "pod", podresourcestest.Container("main", claim)))
	p := start(t, n.flags(nil))
	p.eventually("known", func() bool {
		m := p.scrape()
		return m.is(1, "dra_pod_claim_info", "pod", "pod", "resourceclaim_name", "nic", "driver", "nic.example.com") &&
			m.is(1, "dra_claim_device_info", "resourceclaim_name", "nic", "pool", "", "device", "one") &&
			m.is(1, "dra_exporter_unresolved_devices", "driver", "nic.example.com", "reason", "no_inventory")
	})
	const why = "not in any ResourceSlice: its hardware is unknown"
	if a := p.page("/page/detail?claim=ns/nic"); a.Status != http.StatusOK || !strings.Contains(string(a.Body), why) {
		t.Errorf("the page of the claim does not say %q: %d %s", why, a.Status, a.Body)
	}
}
