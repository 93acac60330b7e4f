package podresources

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestDecode(t *testing.T) {
	good := test.Pod("ns", "good", test.Container("main", test.Claim("ns", "claim", gpu(0))))
	wire := must.Get(proto.Marshal(answerOf(good)))(t)
	withBadPod := must.Get(test.InvalidUTF8()(t.Context(), wire))(t)
	name := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), make([]byte, maxPod+1))
	large := protowire.AppendBytes(protowire.AppendTag(nil, podResourcesField, protowire.BytesType), name)
	withField := protowire.AppendVarint(protowire.AppendTag(bytes.Clone(wire), 9, protowire.VarintType), 300)
	withField = protowire.AppendBytes(protowire.AppendTag(withField, 9, protowire.BytesType), []byte("more"))
	withField = protowire.AppendFixed64(protowire.AppendTag(withField, 9, protowire.Fixed64Type), 1)
	for name, tt := range map[string]struct {
		wire []byte
		want *v1.ListPodResourcesResponse
		lost int
		bad  bool
	}{
		"nothing":           {want: answerOf()},
		"as it should be":   {wire: wire, want: answerOf(good)},
		"one bad pod":       {wire: withBadPod, want: answerOf(good, nil)},
		"cut off":           {wire: wire[:len(wire)-1], bad: true},
		"garbage":           {wire: []byte("\xffgarbage"), bad: true},
		"no length of pod":  {wire: []byte{1<<3 | 2}, bad: true},
		"bad pod, then cut": {wire: append(bytes.Clone(withBadPod), 1<<3|2, 5, 'x'), bad: true},
		"other fields":      {wire: append(withField, wire...), want: answerOf(good, good)},
		"no field":          {wire: append(bytes.Clone(wire), 0, 0), bad: true},
		"too large a pod":   {wire: append(large, wire...), want: answerOf(good), lost: 1},
		"and cut off":       {wire: large[:len(large)-1], bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{len(tt.wire), 1, 7, 1 << 14} {
				if len(tt.wire) > 1<<20 && size < 1<<14 {
					continue // it takes too long
				}
				got, err := new(Decoder).Decode(inPieces(tt.wire, size))
				must.That(t, tt.bad == (err != nil), "pieces of %d bytes: error %v, want one: %v", size, err, tt.bad)
				if err != nil {
					continue
				}
				if lost := leftOut(got); lost != tt.lost {
					t.Errorf("pieces of %d bytes: %d pods are left out, want %d", size, lost, tt.lost)
				}
				got.ProtoReflect().SetUnknown(nil)
				expect.Is(t, cmp.Diff(tt.want, got, protocmp.Transform()), "", "pieces of %d bytes", size)
			}
		})
	}
}
