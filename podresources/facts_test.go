package podresources

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/driver"
)

// recordedPods returns the pods of the recorded cluster.
func recordedPods(t *testing.T) map[Pod]PodFacts {
	t.Helper()
	var list corev1.PodList
	if err := yaml.Unmarshal(recorded(t, "pods.yaml"), &list); err != nil {
		t.Fatal(err)
	}
	out := map[Pod]PodFacts{}
	for i := range list.Items {
		name, facts, ok := NewPodFacts(&list.Items[i], &Selection{})
		if !ok {
			t.Fatalf("pod %v is not usable", name)
		}
		out[name] = facts
	}
	return out
}

func recordedDevice(name string) driver.ID {
	return driver.ID{Driver: "gpu.example.com", Pool: "node1", Device: name}
}

func TestRecordedPods(t *testing.T) {
	pods := recordedPods(t)
	health := func(resource string, devices ...string) []DeviceHealth {
		var out []DeviceHealth
		for _, d := range devices {
			out = append(out, DeviceHealth{
				Resource: resource, Health: HealthGood, ID: "gpu.example.com/gpu=7775b32e-588a-415c-9585-97f82d874817-" + d,
			})
		}
		return out
	}
	want := PodFacts{
		UID:     "ccffd2eb-d640-4fed-b21b-8ca738230d1b",
		Running: 4,
		Meta:    &PodMeta{},
		Claims:  []PodClaim{{Name: "gpus", Claim: "multi-gpus-5sjnf"}},
		Containers: []PodContainer{
			{Name: "plain-init", Uses: []ClaimUse{{Name: "gpus"}}},
			{Name: "sidecar", Uses: []ClaimUse{{Name: "gpus", Request: "small"}}},
			{Name: "all", Uses: []ClaimUse{{Name: "gpus"}}},
			{Name: "only-big", Uses: []ClaimUse{{Name: "gpus", Request: "big"}}},
		},
		Health: append(health("claim:gpus", "gpu-1", "gpu-2", "gpu-3"), health("claim:gpus/big", "gpu-1", "gpu-2")...),
	}
	got := pods[Pod{Namespace: "team-a", Name: "multi"}]
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("multi: -want +got:\n%s", diff)
	}
	if shared := pods[Pod{Namespace: "team-b", Name: "share-1"}].Claims; len(shared) != 1 || shared[0].Claim != "shared-claim" {
		t.Errorf("share-1 has the claims %v", shared)
	}
}

// multiClaim is what the API server said of the claim of the recorded pod multi: the recording has the requests of its
// devices in the pod's health alone.
func multiClaim() (Claim, ClaimFacts) {
	result := func(device, request string) ClaimResult {
		return ClaimResult{Device: recordedDevice(device), Request: request, DeviceClass: "gpu.example.com"}
	}
	return Claim{Namespace: "team-a", Name: "multi-gpus-5sjnf"}, ClaimFacts{
		UID: "7775b32e-588a-415c-9585-97f82d874817", PodClaimName: "gpus",
		Results: []ClaimResult{result("gpu-1", "big"), result("gpu-2", "big"), result("gpu-3", "small")},
	}
}

// A container that names a request holds that request's devices alone, though the kubelet lists it with all of the
// claim (KUBELET.md 3).
func TestApplyRequestsOnRecorded(t *testing.T) {
	claim, facts := multiClaim()
	all, _ := Parse(recordedList(t))
	containers := map[string][]string{}
	for _, a := range (Facts{Claims: map[Claim]ClaimFacts{claim: facts}, Pods: recordedPods(t)}).Apply(all) {
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
	want := map[string][]string{"gpu-1 big": {"all", "only-big"}, "gpu-2 big": {"all", "only-big"}, "gpu-3 small": {"all", "sidecar"}}
	if diff := cmp.Diff(want, containers); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Where nothing nearer tells a pod's UID, its reservation of the claim does; the input does not change.
func TestReservedTellsUIDs(t *testing.T) {
	claim := Claim{"ns", "c"}
	holders := []Holder{{Pod: Pod{"ns", "known"}, UID: "1"}, {Pod: Pod{"ns", "object"}}, {Pod: Pod{"ns", "reserved"}}, {Pod: Pod{"ns", "unknown"}}}
	facts := Facts{
		Claims: map[Claim]ClaimFacts{claim: {Reserved: map[string]string{"known": "9", "object": "9", "reserved": "3"}}},
		Pods:   map[Pod]PodFacts{{"ns", "object"}: {UID: "2"}},
	}
	in := []Allocation{{Claim: claim, Holders: holders}}
	var got []string
	for _, h := range facts.Apply(in)[0].Holders {
		got = append(got, h.UID)
	}
	if diff := cmp.Diff([]string{"1", "2", "3", ""}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if holders[2].UID != "" {
		t.Error("the input has changed")
	}
	delete(facts.Pods, Pod{"ns", "object"})
	if facts.Apply(in)[0].Holders[2].UID != "3" || holders[2].UID != "" {
		t.Errorf("without pods: %+v, of %+v", facts.Apply(in)[0].Holders, holders)
	}
}

func TestApply(t *testing.T) {
	pod := Pod{Namespace: "ns", Name: "pod"}
	claim := Claim{Namespace: "ns", Name: "claim"}
	device := driver.ID{Driver: "d", Pool: "p", Device: "a"}
	listed := func(uid string, containers ...string) []Holder {
		var out []Holder
		for _, c := range containers {
			out = append(out, Holder{Pod: pod, Container: c, UID: uid})
		}
		return out
	}
	uses := func(container string, uses ...ClaimUse) PodContainer {
		return PodContainer{Name: container, Uses: uses}
	}
	facts := func(request string) map[Claim]ClaimFacts {
		return map[Claim]ClaimFacts{claim: {UID: "claim-uid", PodClaimName: "mine", Results: []ClaimResult{{Device: device, Request: request, Admin: true}}}}
	}
	for name, tt := range map[string]struct {
		claims map[Claim]ClaimFacts
		pod    *PodFacts
		listed []Holder
		want   []string // containers, with the pod's name for the claim
	}{
		"nothing known":               {nil, nil, listed("", "a", "b"), []string{"a ", "b "}},
		"another pod":                 {facts("r"), nil, listed("", "a"), []string{"a "}},
		"all requests":                {facts("r"), &PodFacts{Claims: []PodClaim{{"mine", "claim"}}, Containers: []PodContainer{uses("a", ClaimUse{Name: "mine"})}}, listed("", "a"), []string{"a mine"}},
		"its request":                 {facts("r"), &PodFacts{Claims: []PodClaim{{"mine", "claim"}}, Containers: []PodContainer{uses("a", ClaimUse{Name: "mine", Request: "r"}), uses("b", ClaimUse{Name: "mine", Request: "s"})}}, listed("", "a", "b"), []string{"a mine"}},
		"a subrequest":                {facts("r/small"), &PodFacts{Claims: []PodClaim{{"mine", "claim"}}, Containers: []PodContainer{uses("a", ClaimUse{Name: "mine", Request: "r"}), uses("b", ClaimUse{Name: "mine", Request: "s"})}}, listed("", "a", "b"), []string{"a mine"}},
		"several requests":            {facts("r"), &PodFacts{Claims: []PodClaim{{"mine", "claim"}}, Containers: []PodContainer{uses("a", ClaimUse{Name: "mine", Request: "s"}, ClaimUse{Name: "mine", Request: "r"})}}, listed("", "a"), []string{"a mine"}},
		"another claim's request":     {facts("r"), &PodFacts{Claims: []PodClaim{{"mine", "claim"}, {"other", "c2"}}, Containers: []PodContainer{uses("a", ClaimUse{Name: "other", Request: "s"})}}, listed("", "a"), []string{"a mine"}},
		"request of unknown claim":    {nil, &PodFacts{Claims: []PodClaim{{"mine", "claim"}}, Containers: []PodContainer{uses("a", ClaimUse{Name: "mine", Request: "s"})}}, listed("", "a"), []string{"a mine"}},
		"no container's":              {facts("r"), &PodFacts{Claims: []PodClaim{{"mine", "claim"}}, Containers: []PodContainer{uses("a", ClaimUse{Name: "mine", Request: "s"}), uses("b", ClaimUse{Name: "mine", Request: "s"})}}, listed("", "a", "b"), []string{" mine"}},
		"named by the claim":          {facts("r"), &PodFacts{Claims: []PodClaim{{"other", ""}, {"mine", ""}}}, listed("", "a"), []string{"a mine"}},
		"the only one":                {nil, &PodFacts{Claims: []PodClaim{{"known", "c2"}, {"mine", ""}}}, listed("", "a"), []string{"a mine"}},
		"one of two":                  {nil, &PodFacts{Claims: []PodClaim{{"other", ""}, {"mine", ""}}}, listed("", "a"), []string{"a "}},
		"extended resource":           {facts("c-0-r-0"), &PodFacts{Containers: []PodContainer{uses("a", ClaimUse{Claim: "claim", Request: "c-0-r-0"}), uses("b", ClaimUse{Claim: "claim", Request: "c-1-r-0"})}}, listed("", "a", "b"), []string{"a "}},
		"extended, and a template's":  {facts("c-0-r-0"), &PodFacts{Claims: []PodClaim{{"mine2", ""}}, Containers: []PodContainer{uses("a", ClaimUse{Claim: "claim", Request: "c-0-r-0"})}}, listed("", "a"), []string{"a "}},
		"ended":                       {facts("r"), &PodFacts{UID: "u1", Ended: true}, listed("u1", "a"), nil},
		"ended, UID unknown":          {facts("r"), &PodFacts{UID: "u1", Ended: true}, listed("", "a"), nil},
		"ended, and there is a newer": {facts("r"), &PodFacts{UID: "u1", Ended: true}, listed("u2", "a"), []string{"a "}},
	} {
		t.Run(name, func(t *testing.T) {
			given := []Allocation{{Claim: claim, Device: device, Holders: tt.listed}}
			known := Facts{Claims: tt.claims}
			if tt.pod != nil {
				known.Pods = map[Pod]PodFacts{pod: *tt.pod}
			}
			before := cmp.Diff([]Allocation{{Claim: claim, Device: device, Holders: tt.listed}}, given)
			var got []string
			for _, a := range known.Apply(given) {
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

func TestNewPodFacts(t *testing.T) {
	controller := true
	pod := corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = "p", "ns", "u-1"
	pod.Labels = map[string]string{"app": "x", "other": "y"}
	pod.Annotations = map[string]string{"note": strings.Repeat("x", 511) + "é", "bad": "a\xff"}
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "Thing", Name: "no-controller"}, {Kind: "Job", Name: "train", Controller: &controller}}
	pod.Status.Phase = corev1.PodFailed
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
		ResourceClaimName: "extended-x",
		RequestMappings: []corev1.ContainerExtendedResourceRequest{
			{ContainerName: "main", ResourceName: "example.com/gpu", RequestName: "container-0-request-0"},
			{ContainerName: "main", ResourceName: "example.com/nic", RequestName: "container-0-request-1"},
		},
	}
	_, got, ok := NewPodFacts(&pod, &Selection{
		PodLabels: []Chosen{{"app", "label_app"}, {"absent", "label_absent"}}, PodAnnotations: []Chosen{{"note", "annotation_note"}, {"bad", "annotation_bad"}},
	})
	want := PodFacts{
		UID: "u-1", Ended: true,
		Meta: &PodMeta{OwnerKind: "Job", OwnerName: "train", Labels: []string{
			"label_app", "x", "label_absent", "", "annotation_note", strings.Repeat("x", 511), "annotation_bad", "a?",
		}},
		Containers: []PodContainer{{Name: "main", Uses: []ClaimUse{
			{Claim: "extended-x", Request: "container-0-request-0"}, {Claim: "extended-x", Request: "container-0-request-1"},
		}}},
	}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("usable %v: -want +got:\n%s", ok, diff)
	}
	for _, spoil := range []func(*corev1.Pod){
		func(p *corev1.Pod) { p.Name = "" },
		func(p *corev1.Pod) { p.Namespace = "\xff" },
		func(p *corev1.Pod) { p.UID = "../.." },
	} {
		bad := *pod.DeepCopy()
		spoil(&bad)
		if _, _, ok := NewPodFacts(&bad, &Selection{}); ok {
			t.Errorf("%q %q %q is usable", bad.Namespace, bad.Name, bad.UID)
		}
	}
}

func TestPodSet(t *testing.T) {
	var s PodSet
	a, b := Pod{"ns", "a"}, Pod{"ns", "b"}
	s.Set(a, PodFacts{UID: "1"})
	first := s.All()
	s.Set(b, PodFacts{UID: "2"})
	s.Remove(a, "of another")
	if got := s.All(); len(got) != 2 || s.UID(b) != "2" {
		t.Errorf("pods %v", got)
	}
	s.Remove(a, "1")
	gone := PodFacts{UID: "1", Ended: true, Gone: true}
	if diff := cmp.Diff(map[Pod]PodFacts{a: gone, b: {UID: "2"}}, s.All()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(map[Pod]PodFacts{a: {UID: "1"}}, first); diff != "" {
		t.Errorf("what was handed out changed:\n%s", diff)
	}
	s.Replace(map[Pod]PodFacts{b: {UID: "3"}})
	if diff := cmp.Diff(map[Pod]PodFacts{a: gone, b: {UID: "3"}}, s.All()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	s.Replace(map[Pod]PodFacts{a: {UID: "4"}})
	if diff := cmp.Diff(map[Pod]PodFacts{a: {UID: "4"}}, s.All()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// What the kubelet listed before a pod was gone gives the pod nothing back, and a pod that it does not list any more is forgotten.
func TestPodIsGoneBeforeTheNextAnswer(t *testing.T) {
	var s PodSet
	a := Pod{"ns", "a"}
	listed := []Allocation{{Holders: []Holder{{Pod: a, Container: "main"}}}}
	holders := func() int { return countHolders(Facts{Pods: s.All()}.Apply(listed)) }
	s.Set(a, PodFacts{UID: "1"})
	if holders() != 1 {
		t.Error("a pod that runs holds nothing")
	}
	s.Set(a, PodFacts{UID: "1", Ended: true})
	s.Remove(a, "1")
	s.Forget(listed)
	if holders() != 0 {
		t.Error("a pod that ended holds again when it is gone")
	}
	s.Forget(nil)
	if len(s.All()) != 0 {
		t.Errorf("pods %v", s.All())
	}
	s.Set(a, PodFacts{UID: "2"})
	s.Remove(a, "2")
	s.Set(a, PodFacts{UID: "3"})
	s.Forget(nil)
	if holders() != 1 {
		t.Error("a pod that was made anew under the name holds nothing")
	}
}
