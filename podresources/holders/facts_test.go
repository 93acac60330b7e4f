package holders

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// recording returns a recorded file.
func recording(t *testing.T, name string) []byte {
	t.Helper()
	return must.Get(os.ReadFile(filepath.Join("..", "testdata", name)))(t)
}

// recordedNode returns the recorded cluster: the kubelet's list, and the pods.
func recordedNode(t *testing.T) world {
	t.Helper()
	answer := must.Get(test.ParseList(recording(t, "recorded/list.json")))(t)
	var pods corev1.PodList
	must.Do(t, yaml.Unmarshal(recording(t, "recorded/pods.yaml"), &pods))
	var node world
	node.listed, _ = podresources.Parse(answer)
	for i := range pods.Items {
		name, facts, ok := podresources.NewPodFacts(&pods.Items[i], &podresources.Selection{})
		must.That(t, ok, "pod %v is not usable", name)
		node.pods = append(node.pods, facts)
	}
	return node
}

func recordedDevice(name string) driver.ID {
	return driver.ID{Driver: "gpu.example.com", Pool: "node1", Device: name}
}

// multiClaim returns the API server's facts about the claim of the recorded pod multi. The
// recording has the requests of its devices only in the health of the pod.
func multiClaim() (Claim, ClaimFacts) {
	result := func(device, request string) ClaimResult {
		return ClaimResult{Device: recordedDevice(device), Request: request, DeviceClass: "gpu.example.com"}
	}
	return Claim{Namespace: "team-a", Name: "multi-gpus-5sjnf"}, ClaimFacts{
		UID: "7775b32e-588a-415c-9585-97f82d874817", PodClaimName: "gpus",
		Results: []ClaimResult{result("gpu-1", "big"), result("gpu-2", "big"), result("gpu-3", "small")},
	}
}

// A container that names a request holds only the devices of that request, although the kubelet
// lists it with all devices of the claim (KUBELET.md 3).
func TestApplyRequestsOnRecorded(t *testing.T) {
	claim, facts := multiClaim()
	node := recordedNode(t)
	node.claims = map[Claim]ClaimFacts{claim: facts}
	containers := map[string][]string{}
	for _, a := range node.holdings().Allocations {
		if a.Claim != claim {
			continue
		}
		for _, h := range a.Holders {
			containers[a.Device.Device+" "+a.Request] = append(containers[a.Device.Device+" "+a.Request], h.Container)
			expect.That(t, h.ClaimName == "gpus" && h.UID == "ccffd2eb-d640-4fed-b21b-8ca738230d1b", "holder %+v", h)
		}
	}
	want := map[string][]string{
		"gpu-1 big": {"all", "only-big"}, "gpu-2 big": {"all", "only-big"},
		"gpu-3 small": {"all", "sidecar"},
	}
	expect.Equal(t, "", want, containers)
}

// If no other evidence has the UID of a pod, it is that of the claim's reservation. The input does
// not change.
func TestReservedTellsUIDs(t *testing.T) {
	claim := Claim{Namespace: "ns", Name: "c"}
	holders := []Holder{
		{Pod: Pod{Namespace: "ns", Name: "known"}},
		{Pod: Pod{Namespace: "ns", Name: "object"}},
		{Pod: Pod{Namespace: "ns", Name: "reserved"}},
		{Pod: Pod{Namespace: "ns", Name: "unknown"}},
	}
	node := world{
		listed: []Allocation{{Claim: claim, Holders: holders}},
		claims: map[Claim]ClaimFacts{claim: {Reserved: map[string]string{"8": "known", "9": "object", "3": "reserved"}}},
		uids:   map[Pod]string{{Namespace: "ns", Name: "known"}: "1"},
	}
	uids := func(node world) (out []string) {
		for _, h := range node.holdings().Allocations[0].Holders {
			out = append(out, h.UID)
		}
		return out
	}
	expect.Equal(t, "without pods", []string{"1", "9", "3", ""}, uids(node))
	node.pods = []PodFacts{{Pod: Pod{Namespace: "ns", Name: "object"}, UID: "2"}}
	expect.Equal(t, "", []string{"1", "2", "3", ""}, uids(node))
	expect.That(t, holders[2].UID == "", "the input has changed")
}

// A claim that is reserved for other pods than those that hold it may be an earlier claim of the
// name: its UID is omitted.
func TestUIDOfListedClaim(t *testing.T) {
	for name, tc := range map[string]struct {
		reserved []string
		facts    ClaimFacts
		uids     map[Pod]string // nil: those by the names
		want     string
	}{
		"for one of both":     {reserved: []string{"p"}, want: "u"},
		"for others":          {reserved: []string{"before"}, want: ""},
		"deleted, for others": {reserved: []string{"before"}, facts: ClaimFacts{Deleted: true}, want: ""},
		"for nobody":          {want: "u"},
		"for a pod group":     {reserved: []string{"before"}, facts: ClaimFacts{ReservedOther: true}, want: "u"},
		"unknown pods":        {reserved: []string{"before"}, uids: map[Pod]string{}, want: "u"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.facts.UID = "u"
			node := world{uids: tc.uids}.list("c", "a", "p/main", "q/main")
			node = node.claim("c", tc.facts, []string{"r:a"}, tc.reserved...)
			if got := node.holdings().Allocations[0]; got.ClaimUID != tc.want || got.Request != "r" {
				t.Errorf("the claim is %q, request %q; want %q", got.ClaimUID, got.Request, tc.want)
			}
		})
	}
}
