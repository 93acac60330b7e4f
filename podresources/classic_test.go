package podresources

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

const claimUID = "1e15705a-62fe-4694-8535-93a5f0ccf996"

// An answer as kubelets 1.27 to 1.30 give it, over the wire: the class is in a field that is
// unknown by now.
func TestParseClassic(t *testing.T) {
	wire, err := proto.Marshal(answerOf(
		test.Pod("ns", "a",
			test.Container("main",
				test.Classic("ns", "nic", "netresources.spidernet.io", "k8s.netresources.spidernet.io/claim="+claimUID))),
		test.Pod("ns", "b",
			test.Container("main",
				test.Classic("ns", "nic", "netresources.spidernet.io", "k8s.netresources.spidernet.io/claim="+claimUID))),
		test.Pod("ns", "c",
			test.Container("main",
				test.Classic("ns", "gpus", "", "intel.com/gpu=card0", "intel.com/gpu=card1", "card2", "intel.com/gpu="))),
	))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := new(Decoder).Decode(wire)
	if err != nil {
		t.Fatal(err)
	}
	got, rejections := Parse(answer)
	held := func(pods ...string) []Holder {
		var out []Holder
		for _, p := range pods {
			out = append(out, Holder{Pod: Pod{"ns", p}, Container: "main"})
		}
		return out
	}
	want := []Allocation{
		{
			Claim: Claim{"ns", "gpus"}, Device: driver.ID{Driver: "intel.com", Device: "card0"},
			CDI: []string{"intel.com/gpu=card0"}, Holders: held("c"),
		},
		{
			Claim: Claim{"ns", "gpus"}, Device: driver.ID{Driver: "intel.com", Device: "card1"},
			CDI: []string{"intel.com/gpu=card1"}, Holders: held("c"),
		},
		{
			Claim: Claim{"ns", "nic"}, Device: driver.ID{Driver: "netresources.spidernet.io", Device: claimUID},
			ClaimUID:    claimUID,
			DeviceClass: "netresources.spidernet.io", CDI: []string{"k8s.netresources.spidernet.io/claim=" + claimUID},
			Holders: held("a", "b"),
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(driver.Rejections{driver.ReasonClassicDRA: 2}, rejections); diff != "" {
		t.Errorf("rejections: -want +got:\n%s", diff)
	}
}

func TestClassName(t *testing.T) {
	for name, tc := range map[string]struct{ unknown, want string }{
		"none":             {"", ""},
		"class":            {"\x0a\x01c", "c"},
		"behind another":   {"\x50\x07\x0a\x01c", "c"},
		"of another kind":  {"\x08\x01", ""},
		"cut":              {"\x0a\x05c", ""},
		"cut before":       {"\x52\x05c", ""},
		"no UTF-8":         {"\x0a\x01\xff", ""},
		"empty":            {"\x0a\x00", ""},
		"a tag without it": {"\x80", ""},
	} {
		entry := &v1.DynamicResource{}
		entry.ProtoReflect().SetUnknown([]byte(tc.unknown))
		if got := className(entry); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// What the claim says of a classic device; a single device of a slice is that device.
func TestApplyClassic(t *testing.T) {
	claim := Claim{"ns", "c"}
	listed := func(name string) Allocation {
		return Allocation{
			Claim: claim, Device: driver.ID{Driver: "intel.com", Device: name},
			CDI: []string{"intel.com/gpu=" + name}, Holders: []Holder{{Pod: Pod{"ns", "p"}}},
		}
	}
	instance := driver.ID{Driver: "gpu.intel.com", Pool: "node", Device: "0000:03:00.0"}
	for name, tc := range map[string]struct {
		claim       ClaimFacts
		allocations []Allocation
		want        []driver.ID
		class       string
	}{
		"nothing known": {
			ClaimFacts{},
			[]Allocation{listed("card0")},
			[]driver.ID{{Driver: "intel.com", Device: "card0"}},
			"",
		},
		"class and driver": {
			ClaimFacts{Classic: &Classic{"gpus", "gpu.intel.com"}},
			[]Allocation{listed("card0")},
			[]driver.ID{{Driver: "gpu.intel.com", Device: "card0"}},
			"gpus",
		},
		"no driver": {
			ClaimFacts{Classic: &Classic{"gpus", ""}},
			[]Allocation{listed("card0")},
			[]driver.ID{{Driver: "intel.com", Device: "card0"}},
			"gpus",
		},
		"of a slice": {
			ClaimFacts{
				Classic: &Classic{"gpus", "gpu.intel.com"},
				Results: []ClaimResult{{Device: instance, DeviceClass: "gpus"}},
			},
			[]Allocation{listed("card0")},
			[]driver.ID{instance},
			"gpus",
		},
		"two, which is which": {
			ClaimFacts{
				Classic: &Classic{"gpus", "gpu.intel.com"},
				Results: []ClaimResult{{Device: instance, DeviceClass: "gpus"}},
			},
			[]Allocation{listed("card0"), listed("card1")},
			[]driver.ID{{Driver: "gpu.intel.com", Device: "card0"}, {Driver: "gpu.intel.com", Device: "card1"}},
			"gpus",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []driver.ID
			for _, a := range (Facts{Claims: map[Claim]ClaimFacts{claim: tc.claim}}).Resolve(tc.allocations).Allocations {
				got = append(got, a.Device)
				if a.DeviceClass != tc.class {
					t.Errorf("class %q, want %q", a.DeviceClass, tc.class)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if covered := tc.claim.Covers(&tc.allocations[0]); covered != (tc.claim.Classic != nil) {
				t.Errorf("the claim covers it: %v", covered)
			}
		})
	}
}
