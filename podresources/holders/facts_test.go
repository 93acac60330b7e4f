package holders

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// recording returns a file of the recorded cluster.
func recording(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "testdata", "recorded", name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// recordedNode returns the recorded cluster: the kubelet's list, and the pods.
func recordedNode(t *testing.T) world {
	t.Helper()
	answer, err := test.ParseList(recording(t, "list.json"))
	if err != nil {
		t.Fatal(err)
	}
	var pods corev1.PodList
	if err := yaml.Unmarshal(recording(t, "pods.yaml"), &pods); err != nil {
		t.Fatal(err)
	}
	var node world
	node.listed, _ = podresources.Parse(answer)
	for i := range pods.Items {
		name, facts, ok := podresources.NewPodFacts(&pods.Items[i], &podresources.Selection{})
		if !ok {
			t.Fatalf("pod %v is not usable", name)
		}
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
			if h.ClaimName != "gpus" || h.UID != "ccffd2eb-d640-4fed-b21b-8ca738230d1b" {
				t.Errorf("holder %+v", h)
			}
		}
	}
	want := map[string][]string{
		"gpu-1 big": {"all", "only-big"}, "gpu-2 big": {"all", "only-big"},
		"gpu-3 small": {"all", "sidecar"},
	}
	if diff := cmp.Diff(want, containers); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
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
	if diff := cmp.Diff([]string{"1", "9", "3", ""}, uids(node)); diff != "" {
		t.Errorf("without pods: -want +got:\n%s", diff)
	}
	node.pods = []PodFacts{{Pod: Pod{Namespace: "ns", Name: "object"}, UID: "2"}}
	if diff := cmp.Diff([]string{"1", "2", "3", ""}, uids(node)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if holders[2].UID != "" {
		t.Error("the input has changed")
	}
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

func TestApply(t *testing.T) {
	pod := Pod{Namespace: "ns", Name: "pod"}
	claim := Claim{Namespace: "ns", Name: "claim"}
	device := driver.ID{Driver: "d", Pool: "p", Device: "a"}
	listed := func(containers ...string) []Holder {
		var out []Holder
		for _, c := range containers {
			out = append(out, Holder{Pod: pod, Container: c})
		}
		return out
	}
	uses := func(container string, uses ...ClaimUse) PodContainer {
		return PodContainer{Name: container, Uses: uses}
	}
	facts := func(request string) map[Claim]ClaimFacts {
		return map[Claim]ClaimFacts{claim: {
			UID: "claim-uid", PodClaimName: "mine",
			Results: []ClaimResult{{Device: device, Request: request, Admin: true}},
		}}
	}
	for name, tt := range map[string]struct {
		claims map[Claim]ClaimFacts
		pod    *PodFacts
		listed []Holder
		want   []string // containers, with the pod's name for the claim
	}{
		"nothing known": {nil, nil, listed("a", "b"), []string{"a ", "b "}},
		"another pod":   {facts("r"), nil, listed("a"), []string{"a "}},
		"all requests": {
			facts("r"),
			&PodFacts{
				Claims:     []PodClaim{{Name: "mine", Claim: "claim"}},
				Containers: []PodContainer{uses("a", ClaimUse{Name: "mine"})},
			},
			listed("a"),
			[]string{"a mine"},
		},
		"its request": {
			facts("r"),
			&PodFacts{
				Claims: []PodClaim{{Name: "mine", Claim: "claim"}},
				Containers: []PodContainer{
					uses("a", ClaimUse{Name: "mine", Request: "r"}),
					uses("b", ClaimUse{Name: "mine", Request: "s"}),
				},
			},
			listed("a", "b"),
			[]string{"a mine"},
		},
		"a subrequest": {
			facts("r/small"),
			&PodFacts{
				Claims: []PodClaim{{Name: "mine", Claim: "claim"}},
				Containers: []PodContainer{
					uses("a", ClaimUse{Name: "mine", Request: "r"}),
					uses("b", ClaimUse{Name: "mine", Request: "s"}),
				},
			},
			listed("a", "b"),
			[]string{"a mine"},
		},
		"several requests": {
			facts("r"),
			&PodFacts{
				Claims:     []PodClaim{{Name: "mine", Claim: "claim"}},
				Containers: []PodContainer{uses("a", ClaimUse{Name: "mine", Request: "s"}, ClaimUse{Name: "mine", Request: "r"})},
			},
			listed("a"),
			[]string{"a mine"},
		},
		"another claim's request": {
			facts("r"),
			&PodFacts{
				Claims:     []PodClaim{{Name: "mine", Claim: "claim"}, {Name: "other", Claim: "c2"}},
				Containers: []PodContainer{uses("a", ClaimUse{Name: "other", Request: "s"})},
			},
			listed("a"),
			[]string{"a mine"},
		},
		"request of unknown claim": {
			nil,
			&PodFacts{
				Claims:     []PodClaim{{Name: "mine", Claim: "claim"}},
				Containers: []PodContainer{uses("a", ClaimUse{Name: "mine", Request: "s"})},
			},
			listed("a"),
			[]string{"a mine"},
		},
		"no container's": {
			facts("r"),
			&PodFacts{
				Claims: []PodClaim{{Name: "mine", Claim: "claim"}},
				Containers: []PodContainer{
					uses("a", ClaimUse{Name: "mine", Request: "s"}),
					uses("b", ClaimUse{Name: "mine", Request: "s"}),
				},
			},
			listed("a", "b"),
			nil,
		},
		"named by the claim": {
			facts("r"), &PodFacts{Claims: []PodClaim{{Name: "other", Claim: ""}, {Name: "mine", Claim: ""}}},
			listed("a"),
			[]string{"a mine"},
		},
		"the only one": {
			nil, &PodFacts{Claims: []PodClaim{{Name: "known", Claim: "c2"}, {Name: "mine", Claim: ""}}}, listed("a"),
			[]string{"a mine"},
		},
		"one of two": {
			nil, &PodFacts{Claims: []PodClaim{{Name: "other", Claim: ""}, {Name: "mine", Claim: ""}}}, listed("a"),
			[]string{"a "},
		},
		"extended resource": {
			facts("c-0-r-0"),
			&PodFacts{
				ExtendedClaim: "claim",
				ExtendedUses:  []PodContainer{uses("a", ClaimUse{Request: "c-0-r-0"}), uses("b", ClaimUse{Request: "c-1-r-0"})},
			},
			listed("a", "b"),
			[]string{"a "},
		},
		"extended, and a template's": {
			facts("c-0-r-0"),
			&PodFacts{
				Claims: []PodClaim{{Name: "mine2", Claim: ""}}, ExtendedClaim: "claim",
				ExtendedUses: []PodContainer{uses("a", ClaimUse{Request: "c-0-r-0"})},
			},
			listed("a"),
			[]string{"a "},
		},
		"ending, and still listed": {facts("r"), &PodFacts{Local: true, Final: true}, listed("a"), []string{"a "}},
		"ended":                    {facts("r"), &PodFacts{Final: true}, listed("a"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			given := []Allocation{{Claim: claim, Device: device, Holders: tt.listed}}
			node := world{listed: given, claims: tt.claims}
			if tt.pod != nil {
				tt.pod.Pod, tt.pod.UID = pod, "uid-pod"
				node.pods = []PodFacts{*tt.pod}
			}
			before := cmp.Diff([]Allocation{{Claim: claim, Device: device, Holders: tt.listed}}, given)
			var got []string
			for _, a := range node.holdings().Allocations {
				if a.Admin != (tt.claims != nil) || (a.ClaimUID == "claim-uid") != (tt.claims != nil) {
					t.Errorf("facts of %+v", a)
				}
				for _, h := range a.Holders {
					got = append(got, h.Container+" "+h.ClaimName)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if after := cmp.Diff([]Allocation{{Claim: claim, Device: device, Holders: tt.listed}}, given); after != before {
				t.Errorf("the input changed: %s", after)
			}
		})
	}
}

// A pod that is ending by the kubelet holds the listed devices until its claim has been read again
// and is no longer reserved for it.
func TestEndingPodHoldsWhileReserved(t *testing.T) {
	pod, claim, device := podNamed("pod"), Claim{Namespace: "ns", Name: "claim"}, deviceNamed("a")
	since := second(20)
	for name, tc := range map[string]struct {
		read     time.Time
		reserved map[string]string
		other    bool
		want     int
	}{
		"the claim is unknown":           {want: 1},
		"read before the end, reserved":  {read: since.Add(-time.Second), reserved: map[string]string{"u1": "pod"}, want: 1},
		"read before the end, not":       {read: since.Add(-time.Second), want: 1},
		"read after the end, reserved":   {read: since.Add(time.Second), reserved: map[string]string{"u1": "pod"}, want: 1},
		"read after the end, a group's":  {read: since.Add(time.Second), other: true, want: 1},
		"read after the end, another's":  {read: since.Add(time.Second), reserved: map[string]string{"u2": "pod"}, want: 0},
		"read after the end, not at all": {read: since.Add(time.Second), want: 0},
	} {
		node := world{
			listed: []Allocation{{Claim: claim, Device: device, Holders: []Holder{{Pod: pod, Container: "c"}}}},
			claims: map[Claim]ClaimFacts{claim: {Read: tc.read, Reserved: tc.reserved, ReservedOther: tc.other}},
			pods:   []PodFacts{{Pod: pod, UID: "u1", Started: true, Local: true}},
		}
		got := node.ending(20, 0).holdings().Allocations
		if countHolders(got) != tc.want {
			t.Errorf("%s: %d holders, want %d", name, countHolders(got), tc.want)
		}
	}
}
