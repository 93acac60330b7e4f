package podresources

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"pgregory.net/rapid"

	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

func wireOf(t interface{ Fatal(...any) }, pods ...*v1.PodResources) []byte {
	wire, err := proto.Marshal(answerOf(pods...))
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

func podHolding(name string, device int) *v1.PodResources {
	return test.Pod("ns", name, test.Container("main", test.Claim("ns", "claim-of-"+name, gpu(device))))
}

// Whatever a decoder has decoded before, it decodes the next answer as a new one does, and gives
// the same answer again if and only if the pods are the same.
func TestDecoderRemembers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var d Decoder
		var before *v1.ListPodResourcesResponse
		var listed []string
		for range rapid.IntRange(1, 8).Draw(t, "answers") {
			now := rapid.SliceOfN(rapid.SampledFrom([]string{"a0", "a1", "b0", "c0"}), 0, 4).Draw(t, "pods")
			if listed != nil && rapid.Bool().Draw(t, "same pods") {
				now = rapid.Permutation(listed).Draw(t, "order")
			}
			var pods []*v1.PodResources
			for _, p := range now {
				pods = append(pods, podHolding(p[:1], int(p[1]-'0')))
			}
			wire := wireOf(t, pods...)
			if rapid.IntRange(0, 4).Draw(t, "cut") == 0 && len(wire) > 0 {
				if _, err := d.Decode(wire[:len(wire)-1]); err == nil {
					t.Fatal("no error of an answer that is cut off")
				}
			}
			got, err := d.Decode(wire)
			if err != nil {
				t.Fatal(err)
			}
			sorted, sortedBefore := slices.Sorted(slices.Values(now)), slices.Sorted(slices.Values(listed))
			same := before != nil && slices.Equal(sorted, sortedBefore)
			if twice := len(slices.Compact(slices.Clone(sorted))) < len(sorted); same && !twice != (got == before) {
				t.Fatalf("%v after %v: the same answer: %v", now, listed, got == before)
			}
			want, _ := new(Decoder).Decode(wire)
			if diff := cmp.Diff(texts(want), texts(got)); diff != "" {
				t.Fatal(diff)
			}
			before, listed = got, append([]string{}, now...)
		}
	})
}

// texts returns the pods of an answer, in an order that is not the answer's.
func texts(answer *v1.ListPodResourcesResponse) []string {
	var out []string
	for _, pod := range answer.PodResources {
		out = append(out, prototext.Format(pod))
	}
	slices.Sort(out)
	return out
}

// Of an answer in which one pod changed, the others are the same messages as before.
func TestDecoderKeepsPods(t *testing.T) {
	var d Decoder
	first, err := d.Decode(wireOf(t, podHolding("a", 0), podHolding("b", 1)))
	if err != nil {
		t.Fatal(err)
	}
	second, err := d.Decode(wireOf(t, podHolding("b", 2), podHolding("a", 0)))
	if err != nil {
		t.Fatal(err)
	}
	if second.PodResources[1] != first.PodResources[0] || second.PodResources[0] == first.PodResources[1] {
		t.Error("the pod that is as before is another message, or the one that changed is the same one")
	}
}

// What a keeper returned does not change when a UID becomes known, and the same answer again gives
// the same allocations.
func TestKeeperChangesNothingThatItReturned(t *testing.T) {
	uid := ""
	k := Keeper{PodUID: func(Pod, time.Time) string { return uid }}
	allocations, _ := Parse(answerOf(podHolding("a", 0), podHolding("b", 1)))
	k.Observe(allocations, nil, time.Unix(1, 0))
	unknown := k.Allocations()
	uid = "u"
	k.Observe(allocations, nil, time.Unix(2, 0))
	known := k.Allocations()
	k.Observe(allocations, nil, time.Unix(3, 0))
	again := k.Allocations()
	if got := unknown[0].Holders[0].UID + allocations[0].Holders[0].UID; got != "" {
		t.Errorf("UID %q of what was returned or given before", got)
	}
	if got := known[0].Holders[0].UID; got != "u" {
		t.Errorf("UID %q", got)
	}
	if &known[0] != &again[0] {
		t.Error("other allocations for the same answer")
	}
	k.drop(func(State) bool { return true })
	k.Observe(allocations, nil, time.Unix(4, 0))
	if got := len(k.Allocations()); got != 2 {
		t.Errorf("%d allocations after an answer that follows a loss", got)
	}
}

// A resolver gives what Resolve gives, and the same again only for the same input.
func TestResolver(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var r Resolver
		var known [2]Facts
		var listed [2][]Allocation
		for i := range known {
			n := drawNode(t)
			known[i], listed[i] = n.facts(), n.listed
		}
		for range 6 {
			facts, of := known[rapid.IntRange(0, 1).Draw(t, "facts")], listed[rapid.IntRange(0, 1).Draw(t, "listed")]
			if rapid.IntRange(0, 3).Draw(t, "exited") == 0 {
				facts.Exited = map[string]bool{}
				for uid := range facts.Pods {
					facts.Exited[uid] = true
				}
			}
			if rapid.IntRange(0, 3).Draw(t, "without claims") == 0 {
				facts.Claims = nil
			}
			got := r.Resolve(facts, of)
			if diff := cmp.Diff(facts.Resolve(of), got); diff != "" {
				t.Fatal(diff)
			}
			if again := r.Resolve(facts, of); len(of) > 0 && len(got.Allocations) > 0 &&
				&again.Allocations[0] != &got.Allocations[0] {
				t.Fatal("the same input was resolved again")
			}
			facts.Exited = map[string]bool{"another": true}
			if other := r.Resolve(facts, of); len(of) > 0 && len(facts.Pods) > 0 && len(got.Allocations) > 0 &&
				&other.Allocations[0] == &got.Allocations[0] {
				t.Fatal("another input was not resolved")
			}
		}
	})
}
