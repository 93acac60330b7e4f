package podresources

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

func TestDecode(t *testing.T) {
	good := test.Pod("ns", "good", test.Container("main", test.Claim("ns", "claim", gpu(0))))
	wire, err := proto.Marshal(answerOf(good))
	if err != nil {
		t.Fatal(err)
	}
	withBadPod, err := test.InvalidUTF8()(t.Context(), wire)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		wire []byte
		want *v1.ListPodResourcesResponse
		bad  bool
	}{
		"nothing":           {want: answerOf()},
		"as it should be":   {wire: wire, want: answerOf(good)},
		"one bad pod":       {wire: withBadPod, want: answerOf(good, nil)},
		"cut off":           {wire: wire[:len(wire)-1], bad: true},
		"garbage":           {wire: []byte("\xffgarbage"), bad: true},
		"no length of pod":  {wire: []byte{1<<3 | 2}, bad: true},
		"bad pod, then cut": {wire: append(withBadPod, 1<<3|2, 5, 'x'), bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := new(Decoder).Decode(tt.wire)
			if tt.bad != (err != nil) {
				t.Fatalf("error %v, want one: %v", err, tt.bad)
			}
			if err != nil {
				return
			}
			if diff := cmp.Diff(tt.want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
