package podresources

import (
	stdcmp "cmp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/driver"
)

// recordedPods returns the pods of the recorded cluster.
func recordedPods(t *testing.T) map[string]PodFacts {
	t.Helper()
	var list corev1.PodList
	if err := yaml.Unmarshal(recorded(t, "pods.yaml"), &list); err != nil {
		t.Fatal(err)
	}
	out := map[string]PodFacts{}
	for i := range list.Items {
		name, facts, ok := NewPodFacts(&list.Items[i], &Selection{})
		if !ok {
			t.Fatalf("pod %v is not usable", name)
		}
		out[facts.UID] = facts
	}
	return out
}

// podNamed returns the newest pod of that name.
func podNamed(pods map[string]PodFacts, namespace, name string) PodFacts {
	return pods[newest(pods)[Pod{Namespace: namespace, Name: name}]]
}

// byUID returns the pods by UID.
func byUID(pods ...PodFacts) map[string]PodFacts {
	out := map[string]PodFacts{}
	for _, p := range pods {
		out[p.UID] = p
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
				Resource: resource, Health: driver.HealthGood, ID: "gpu.example.com/gpu=7775b32e-588a-415c-9585-97f82d874817-" + d,
			})
		}
		return out
	}
	want := PodFacts{
		Pod:     Pod{Namespace: "team-a", Name: "multi"},
		UID:     "ccffd2eb-d640-4fed-b21b-8ca738230d1b",
		Created: time.Date(2026, 11, 21, 1, 56, 56, 0, time.UTC),
		Running: 4, Started: true, Told: true,
		Meta:   &PodMeta{},
		Claims: []PodClaim{{Name: "gpus", Claim: "multi-gpus-5sjnf"}},
		Containers: []PodContainer{
			{Name: "plain-init", Uses: []ClaimUse{{Name: "gpus"}}},
			{Name: "sidecar", Uses: []ClaimUse{{Name: "gpus", Request: "small"}}, Listed: true},
			{Name: "all", Uses: []ClaimUse{{Name: "gpus"}}, Listed: true},
			{Name: "only-big", Uses: []ClaimUse{{Name: "gpus", Request: "big"}}, Listed: true},
		},
		Health: append(health("claim:gpus", "gpu-1", "gpu-2", "gpu-3"), health("claim:gpus/big", "gpu-1", "gpu-2")...),
	}
	got := podNamed(pods, "team-a", "multi")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("multi: -want +got:\n%s", diff)
	}
	if shared := podNamed(pods, "team-b", "share-1").Claims; len(shared) != 1 || shared[0].Claim != "shared-claim" {
		t.Errorf("share-1 has the claims %v", shared)
	}
}

// multiClaim is what the API server said of the claim of the recorded pod multi: the recording has
// the requests of its devices in the pod's health alone.
func multiClaim() (Claim, ClaimFacts) {
	result := func(device, request string) ClaimResult {
		return ClaimResult{Device: recordedDevice(device), Request: request, DeviceClass: "gpu.example.com"}
	}
	return Claim{Namespace: "team-a", Name: "multi-gpus-5sjnf"}, ClaimFacts{
		UID: "7775b32e-588a-415c-9585-97f82d874817", PodClaimName: "gpus",
		Results: []ClaimResult{result("gpu-1", "big"), result("gpu-2", "big"), result("gpu-3", "small")},
	}
}

// A container that names a request holds that request's devices alone, though the kubelet lists it
// with all of the claim (KUBELET.md 3).
func TestApplyRequestsOnRecorded(t *testing.T) {
	claim, facts := multiClaim()
	all, _ := Parse(recordedList(t))
	containers := map[string][]string{}
	for _, a := range (Facts{Claims: map[Claim]ClaimFacts{claim: facts}, Pods: recordedPods(t)}).Resolve(all).Allocations {
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

// Where nothing nearer tells a pod's UID, its reservation of the claim does; the input does not
// change.
func TestReservedTellsUIDs(t *testing.T) {
	claim := Claim{"ns", "c"}
	holders := []Holder{
		{Pod: Pod{"ns", "known"}, UID: "1"},
		{Pod: Pod{"ns", "object"}},
		{Pod: Pod{"ns", "reserved"}},
		{Pod: Pod{"ns", "unknown"}},
	}
	facts := Facts{
		Claims: map[Claim]ClaimFacts{claim: {Reserved: map[string]string{"8": "known", "9": "object", "3": "reserved"}}},
		Pods:   byUID(PodFacts{Pod: Pod{"ns", "object"}, UID: "2"}),
	}
	in := []Allocation{{Claim: claim, Holders: holders}}
	var got []string
	for _, h := range facts.Resolve(in).Allocations[0].Holders {
		got = append(got, h.UID)
	}
	if diff := cmp.Diff([]string{"1", "2", "3", ""}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if holders[2].UID != "" {
		t.Error("the input has changed")
	}
	delete(facts.Pods, "2")
	if facts.Resolve(in).Allocations[0].Holders[2].UID != "3" || holders[2].UID != "" {
		t.Errorf("without pods: %+v, of %+v", facts.Resolve(in).Allocations[0].Holders, holders)
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
		"nothing known": {nil, nil, listed("", "a", "b"), []string{"a ", "b "}},
		"another pod":   {facts("r"), nil, listed("", "a"), []string{"a "}},
		"all requests": {
			facts("r"),
			&PodFacts{Claims: []PodClaim{{"mine", "claim"}}, Containers: []PodContainer{uses("a", ClaimUse{Name: "mine"})}},
			listed("", "a"),
			[]string{"a mine"},
		},
		"its request": {
			facts("r"),
			&PodFacts{
				Claims: []PodClaim{{"mine", "claim"}},
				Containers: []PodContainer{
					uses("a", ClaimUse{Name: "mine", Request: "r"}),
					uses("b", ClaimUse{Name: "mine", Request: "s"}),
				},
			},
			listed("", "a", "b"),
			[]string{"a mine"},
		},
		"a subrequest": {
			facts("r/small"),
			&PodFacts{
				Claims: []PodClaim{{"mine", "claim"}},
				Containers: []PodContainer{
					uses("a", ClaimUse{Name: "mine", Request: "r"}),
					uses("b", ClaimUse{Name: "mine", Request: "s"}),
				},
			},
			listed("", "a", "b"),
			[]string{"a mine"},
		},
		"several requests": {
			facts("r"),
			&PodFacts{
				Claims:     []PodClaim{{"mine", "claim"}},
				Containers: []PodContainer{uses("a", ClaimUse{Name: "mine", Request: "s"}, ClaimUse{Name: "mine", Request: "r"})},
			},
			listed("", "a"),
			[]string{"a mine"},
		},
		"another claim's request": {
			facts("r"),
			&PodFacts{
				Claims:     []PodClaim{{"mine", "claim"}, {"other", "c2"}},
				Containers: []PodContainer{uses("a", ClaimUse{Name: "other", Request: "s"})},
			},
			listed("", "a"),
			[]string{"a mine"},
		},
		"request of unknown claim": {
			nil,
			&PodFacts{
				Claims:     []PodClaim{{"mine", "claim"}},
				Containers: []PodContainer{uses("a", ClaimUse{Name: "mine", Request: "s"})},
			},
			listed("", "a"),
			[]string{"a mine"},
		},
		"no container's": {
			facts("r"),
			&PodFacts{
				Claims: []PodClaim{{"mine", "claim"}},
				Containers: []PodContainer{
					uses("a", ClaimUse{Name: "mine", Request: "s"}),
					uses("b", ClaimUse{Name: "mine", Request: "s"}),
				},
			},
			listed("", "a", "b"),
			[]string{" mine"},
		},
		"named by the claim": {
			facts("r"), &PodFacts{Claims: []PodClaim{{"other", ""}, {"mine", ""}}},
			listed("", "a"),
			[]string{"a mine"},
		},
		"the only one": {
			nil, &PodFacts{Claims: []PodClaim{{"known", "c2"}, {"mine", ""}}}, listed("", "a"),
			[]string{"a mine"},
		},
		"one of two": {
			nil, &PodFacts{Claims: []PodClaim{{"other", ""}, {"mine", ""}}}, listed("", "a"),
			[]string{"a "},
		},
		"extended resource": {
			facts("c-0-r-0"),
			&PodFacts{
				ExtendedClaim: "claim",
				ExtendedUses:  []PodContainer{uses("a", ClaimUse{Request: "c-0-r-0"}), uses("b", ClaimUse{Request: "c-1-r-0"})},
			},
			listed("", "a", "b"),
			[]string{"a "},
		},
		"extended, and a template's": {
			facts("c-0-r-0"),
			&PodFacts{
				Claims: []PodClaim{{"mine2", ""}}, ExtendedClaim: "claim",
				ExtendedUses: []PodContainer{uses("a", ClaimUse{Request: "c-0-r-0"})},
			},
			listed("", "a"),
			[]string{"a "},
		},
		"ending, and still listed":    {facts("r"), &PodFacts{UID: "u1", Ending: true}, listed("u1", "a"), []string{"a "}},
		"gone":                        {facts("r"), &PodFacts{UID: "u1", Gone: true}, listed("u1", "a"), nil},
		"ended":                       {facts("r"), &PodFacts{UID: "u1", Ended: true}, listed("u1", "a"), nil},
		"ended, UID unknown":          {facts("r"), &PodFacts{UID: "u1", Ended: true}, listed("", "a"), nil},
		"ended, and there is a newer": {facts("r"), &PodFacts{UID: "u1", Ended: true}, listed("u2", "a"), []string{"a "}},
	} {
		t.Run(name, func(t *testing.T) {
			given := []Allocation{{Claim: claim, Device: device, Holders: tt.listed}}
			known := Facts{Claims: tt.claims}
			if tt.pod != nil {
				tt.pod.Pod, tt.pod.UID = pod, stdcmp.Or(tt.pod.UID, "u")
				known.Pods = byUID(*tt.pod)
			}
			before := cmp.Diff([]Allocation{{Claim: claim, Device: device, Holders: tt.listed}}, given)
			var got []string
			for _, a := range known.Resolve(given).Allocations {
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
	pod.OwnerReferences = []metav1.OwnerReference{
		{Kind: "Thing", Name: "no-controller"},
		{Kind: "Job", Name: "train", Controller: &controller},
	}
	pod.Status.Phase = corev1.PodFailed
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
		ResourceClaimName: "extended-x",
		RequestMappings: []corev1.ContainerExtendedResourceRequest{
			{ContainerName: "main", ResourceName: "example.com/gpu", RequestName: "container-0-request-0"},
			{ContainerName: "main", ResourceName: "example.com/nic", RequestName: "container-0-request-1"},
		},
	}
	_, got, ok := NewPodFacts(&pod, &Selection{
		PodLabels:      []Chosen{{"app", "label_app"}, {"absent", "label_absent"}},
		PodAnnotations: []Chosen{{"note", "annotation_note"}, {"bad", "annotation_bad"}},
	})
	want := PodFacts{
		Pod: Pod{"ns", "p"}, UID: "u-1", Ended: true,
		Meta: &PodMeta{OwnerKind: "Job", OwnerName: "train", WorkloadKind: "Job", WorkloadName: "train", Labels: []string{
			"label_app", "x", "label_absent", "", "annotation_note", strings.Repeat("x", 511), "annotation_bad", "a?",
		}},
		Told: true, ExtendedClaim: "extended-x", ExtendedUses: []PodContainer{{Name: "main", Uses: []ClaimUse{
			{Request: "container-0-request-0"}, {Request: "container-0-request-1"},
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

// A static pod has one UID, that of the kubelet, whether the kubelet or its mirror pod at the API
// server tells of it. An annotation that names a pod of the API server is no mirror pod's.
func TestStaticPods(t *testing.T) {
	const source, mirror = "kubernetes.io/config.source", "kubernetes.io/config.mirror"
	const hash, uid = "0f9c4a7be2d35168aa5cfe2b0a1d4e37", "6a2c1f04-5a0b-4a3e-9d57-0e1f7f6b8c21"
	for name, tc := range map[string]struct {
		uid         string
		annotations map[string]string
		want        string
		static      bool
	}{
		"kubelet":  {hash, map[string]string{source: "file", "kubernetes.io/config.hash": hash}, hash, true},
		"mirror":   {uid, map[string]string{source: "file", mirror: hash}, hash, true},
		"other":    {uid, map[string]string{source: "api"}, uid, false},
		"hash":     {hash, map[string]string{source: "api"}, hash, false},
		"made up":  {uid, map[string]string{mirror: "11111111-5a0b-4a3e-9d57-0e1f7f6b8c21"}, uid, false},
		"no hash":  {uid, map[string]string{mirror: "XXXX4a7be2d35168aa5cfe2b0a1d4e37"}, uid, false},
		"own word": {uid, map[string]string{source: "file"}, uid, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "a", UID: types.UID(tc.uid), Annotations: tc.annotations,
			}}
			_, got, ok := NewPodFacts(&pod, &Selection{})
			if !ok || got.UID != tc.want || got.Static != tc.static {
				t.Errorf("got UID %s, static %v; want %s, %v", got.UID, got.Static, tc.want, tc.static)
			}
		})
	}
}

// A pod that is ending for the kubelet holds what the kubelet lists until the claim, read since, is
// no longer reserved for it.
func TestEndingPodHoldsWhileReserved(t *testing.T) {
	pod, claim, device := Pod{"ns", "pod"}, Claim{"ns", "claim"}, driver.ID{Driver: "d", Pool: "p", Device: "a"}
	since := time.Unix(1_700_000_000, 0)
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
		facts := Facts{
			Claims: map[Claim]ClaimFacts{claim: {Read: tc.read, Reserved: tc.reserved, ReservedOther: tc.other}},
			Pods:   byUID(PodFacts{Pod: pod, UID: "u1", Ending: true, EndingSince: since}),
		}
		got := facts.Resolve([]Allocation{{
			Claim: claim, Device: device,
			Holders: []Holder{{Pod: pod, Container: "c", UID: "u1"}},
		}}).Allocations
		if countHolders(got) != tc.want {
			t.Errorf("%s: %d holders, want %d", name, countHolders(got), tc.want)
		}
	}
}
