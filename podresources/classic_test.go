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

// An answer of kubelets 1.27 to 1.30, as sent over the wire: the class is in a field that is no
// longer defined.
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
