package scenarios

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/cpudriver"
)

// One pod sends through an interface, and another keeps a CPU busy, while the drivers and the
// kubelet restart. Both hold their devices on every snapshot. In the end they must be charged
// exactly what was sent and used: nothing is lost or counted twice. The restarted driver moves the
// interface back from the pod.
func testRealDevicesThroughRestarts(t *testing.T, w *world) {
	const nicIndex, payload = 3, 2_000_000
	n := w.namespace(t, "restarts")
	n.claim("nic", nic(nicIndex))
	n.claim("cpu", request("cpu", cpudriver.Name))
	arrived, busy := n.arrived(nicIndex), n.busy()
	n.pod("sender", once(podSpec("nic", "told", "send", "udp", "198.18.3.1:9", strconv.Itoa(payload), "15s")))
	n.pod("burner", once(podSpec("cpu", "burn", "6s")))
	n.running(2)
	lift := n.keeps(2)
	holds, _ := n.agree(2)
	n.tell("sender", nicIndex)

	n.order(w.cluster.StopComponent, "driver")
	n.order(w.cluster.StopComponent, "kubelet")
	n.sendsOn(nicIndex)
	n.order(w.cluster.StartComponent, "driver")
	n.sourceUp("podresources", 0)
	n.order(w.cluster.StartComponent, "kubelet")
	n.sourceUp("podresources", 1)

	n.charged(n.informed(), nicIndex, arrived, payload, "sender")
	n.chargedBusy("burner", "cpu", holds[0].Device, busy)
	lift()
	n.clear()
	n.onNode(nicIndex)
}

// sendsOn waits until more bytes have been sent through the interface.
func (n *namespace) sendsOn(nic int) {
	n.sendsMore(nic, n.arrived(nic))
}

// sendsMore waits until more bytes than before have arrived.
func (n *namespace) sendsMore(nic int, before float64) {
	eventually(n.T, "more is sent", func() error {
		if n.arrived(nic) < before+10_000 {
			return errors.New("nothing was sent")
		}
		return nil
	})
}

// A pod that is deleted by force is immediately gone from the API server, but its processes run on
// for the kubelet's shortest grace period of 2 s. It must be charged at least what it sent before,
// and at most what its processes sent: exporters without the API server learn from the kubelet that
// it has ended, after its processes have. The rest is unattributed and not lost.
func testForceDeletedRunning(t *testing.T, w *world) {
	const (
		nicIndex = 2
		rate     = 500_000.0 // Bytes of payload per second.
		grace    = 4
		allowed  = 1.2 * rate * 1.5 // Bytes sent within the allowed error of the end's time.
	)
	n := w.namespace(t, "force-deleted-running")
	n.claim("nic", nic(nicIndex))
	spec := podSpec("nic", "stubborn", "told", "send", "udp", "198.18.2.1:9", strconv.Itoa(60*rate), "60s")
	spec.TerminationGracePeriodSeconds = ptr.To[int64](grace)
	before := n.arrived(nicIndex)
	n.pod("user", once(spec))
	n.running(1)
	n.agree(1)
	n.tell("user", nicIndex)
	eventually(t, "it sends for a while", func() error {
		if got := n.arrived(nicIndex) - before; got < rate {
			return fmt.Errorf("%v bytes arrived", got)
		}
		return nil
	})
	held := n.arrived(nicIndex) - before
	n.remove("user", 0)
	n.sendsMore(nicIndex, before+held)
	n.agree(0)
	n.onNode(nicIndex)
	eventually(t, "all that was sent is attributed or unattributed", func() error {
		all := n.arrived(nicIndex) - before
		return ofAll(n.informed(), snapshots(func(_ *running, r *present.Report) error {
			d := deviceOf(r, fmt.Sprintf("nic%d", nicIndex))
			claim, pod := holder(r.Claims, n.name, "nic", d.Device), holder(r.Pods, n.name, "user", d.Device)
			sent, charged, left := transmitted(d.Values), transmitted(claim.Values), transmitted(d.Unattributed)
			apart := math.Abs(charged + left - all)
			if sent != all || charged < held-allowed || apart > strays || transmitted(pod.Values) != charged ||
				claim.Ended == nil {
				return fmt.Errorf("the device sent %v bytes, claim and pod are charged %v and %v, nobody %v, the end is at %v; "+
					"of %v bytes %v came before", sent, charged, transmitted(pod.Values), left, claim.Ended, all, held)
			}
			return nil
		}))
	})
}
