package podresources

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// podResourcesField is the number of ListPodResourcesResponse.pod_resources (k8s.io/kubelet
// pkg/apis/podresources/v1/api.proto).
const podResourcesField = 1

// decode decodes a response of List. protobuf rejects the whole message for a single name that is
// not UTF-8; here only the pods that cannot be decoded are nil.
func decode(wire []byte) (*v1.ListPodResourcesResponse, error) {
	answer := new(v1.ListPodResourcesResponse)
	if proto.Unmarshal(wire, answer) == nil {
		return answer, nil
	}
	answer.Reset()
	for len(wire) > 0 {
		number, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			return nil, fmt.Errorf("decode answer: %w", protowire.ParseError(n))
		}
		wire = wire[n:]
		n = protowire.ConsumeFieldValue(number, kind, wire)
		if n < 0 {
			return nil, fmt.Errorf("decode answer: %w", protowire.ParseError(n))
		}
		if number == podResourcesField && kind == protowire.BytesType {
			answer.PodResources = append(answer.PodResources, decodePod(wire[:n]))
		}
		wire = wire[n:]
	}
	return answer, nil
}

// decodePod reads one pod, with its length before it; nil: it cannot be decoded.
func decodePod(wire []byte) *v1.PodResources {
	content, n := protowire.ConsumeBytes(wire)
	pod := new(v1.PodResources)
	if n < 0 || proto.Unmarshal(content, pod) != nil {
		return nil
	}
	return pod
}
