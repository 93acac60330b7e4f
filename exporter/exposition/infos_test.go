package exposition_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// Data of API objects about holders is shown. Data about names stays for the retention, and data
// about holds goes with the holder.
func TestFactsShown(t *testing.T) {
	h := exportertest.NewHistory(t)
	a := h.Hold("claim", "pod")
	a.ClaimUID, a.ClaimLabels = "c-1", []string{"label_team", "red"}
	a.Conditions = []podresources.Condition{{Type: "Ready", Status: "True"}, {Type: "Strange", Status: "Unknown"}}
	a.Network = &podresources.Network{
		Interface: "net1", IPs: []string{"192.0.2.1", "2001:db8::1"}, HardwareAddress: "02:00:00:00:00:01",
	}
	a.Holders[0].Meta = &podresources.PodMeta{
		OwnerKind: "Job", OwnerName: "train", WorkloadKind: "JobSet", WorkloadName: "llm", Queue: "gold",
		Labels: []string{"label_app", "x", "annotation_note", ""},
	}
	const device = `device="gpu-0",driver="gpu.example.com",`
	const holding = `namespace="team",pool="node1",resourceclaim_name="claim",share_id="",`
	const network = device + `hardware_address="02:00:00:00:00:01",interface="net1",ip=`
	info := map[string][]string{
		"dra_pod_info": {
			`annotation_note="",created_by_kind="Job",created_by_name="train",label_app="x",` +
				`namespace="team",pod="pod",queue="gold",uid="uid-pod",workload_kind="JobSet",workload_name="llm"`,
		},
		"dra_claim_info": {`label_team="red",namespace="team",resourceclaim_name="claim",uid="c-1"`},
	}
	now := maps.Clone(info)
	now["dra_claim_device_condition"] = []string{
		device + holding + `status="True",type="Ready"`, device + holding + `status="Unknown",type="Strange"`,
	}
	now["dra_claim_network_info"] = []string{
		network + `"192.0.2.1",namespace="team",pool="node1",resourceclaim_name="claim",share_id=""`,
		network + `"2001:db8::1",namespace="team",pool="node1",resourceclaim_name="claim",share_id=""`,
	}
	check := func(x exportertest.Scraped, want map[string][]string) {
		got := map[string][]string{}
		for _, family := range slices.Sorted(maps.Keys(now)) {
			if rows := x[family]; len(rows) > 0 {
				got[family] = slices.Sorted(maps.Keys(rows))
			}
		}
		expect.Equal(t, "", want, got)
	}
	check(h.Tick(time.Second), now)

	// An API server that is away for once takes nothing back.
	a.Holders[0].Meta, a.ClaimLabels, a.ClaimUID = nil, nil, ""
	check(h.Tick(time.Second), now)
	h.Free("claim")
	check(h.Tick(time.Second), info)
}

func TestNetworkWithoutAddress(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("claim", "pod").Network = &podresources.Network{Interface: "ib0"}
	if rows := h.Tick(time.Second)["dra_claim_network_info"]; len(rows) != 1 {
		t.Errorf("rows %v, want one", rows)
	}
}
