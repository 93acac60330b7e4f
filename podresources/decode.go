package podresources

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// podResourcesField is the number of ListPodResourcesResponse.pod_resources (k8s.io/kubelet
// pkg/apis/podresources/v1/api.proto).
const podResourcesField = 1

// Decoder decodes responses of List, one after the other. A pod of which the response before had
// the same bytes is the same message as there, and a response of the same pods is the same
// response, whatever their order: the kubelet lists them in the order of a map. So what comes from
// a decoder must not be changed. The zero value is ready. It is safe for concurrent use.
type Decoder struct {
	mu     sync.Mutex
	answer *v1.ListPodResourcesResponse
	pods   map[string]*decodedPod // of answer, by their bytes
	turn   uint64                 // counts the responses
}

// decodedPod is a pod, and the response that had it last.
type decodedPod struct {
	pod  *v1.PodResources // nil: it cannot be decoded
	turn uint64
}

// Decode decodes a response of List. protobuf rejects the whole message for a single name that is
// not UTF-8; here only the pods that cannot be decoded are nil. The bytes are not kept.
func (d *Decoder) Decode(wire []byte) (*v1.ListPodResourcesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turn++
	pods, known, err := d.count(wire)
	if err != nil {
		return nil, err
	}
	if d.answer != nil && known == pods && pods == len(d.pods) && pods == len(d.answer.PodResources) {
		return d.answer, nil
	}
	before := d.pods
	d.pods = make(map[string]*decodedPod, pods)
	d.answer = &v1.ListPodResourcesResponse{}
	if pods > 0 {
		d.answer.PodResources = make([]*v1.PodResources, 0, pods)
	}
	err = eachPod(wire, func(content []byte) {
		p := before[string(content)]
		if p == nil {
			p = &decodedPod{pod: decodePod(content)}
		}
		d.pods[string(content)] = p
		d.answer.PodResources = append(d.answer.PodResources, p.pod)
	})
	return d.answer, err
}

// count returns how many pods a response has, and how many of these, each counted once, the
// response before had.
func (d *Decoder) count(wire []byte) (pods, known int, err error) {
	err = eachPod(wire, func(content []byte) {
		pods++
		if p := d.pods[string(content)]; p != nil && p.turn != d.turn {
			p.turn = d.turn
			known++
		}
	})
	return pods, known, err
}

// eachPod calls f with the bytes of each pod of a response.
func eachPod(wire []byte, f func(content []byte)) error {
	for len(wire) > 0 {
		number, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			return fmt.Errorf("decode answer: %w", protowire.ParseError(n))
		}
		wire = wire[n:]
		n = protowire.ConsumeFieldValue(number, kind, wire)
		if n < 0 {
			return fmt.Errorf("decode answer: %w", protowire.ParseError(n))
		}
		if number == podResourcesField && kind == protowire.BytesType {
			content, _ := protowire.ConsumeBytes(wire)
			f(content)
		}
		wire = wire[n:]
	}
	return nil
}

// decodePod reads one pod; nil: it cannot be decoded.
func decodePod(wire []byte) *v1.PodResources {
	pod := new(v1.PodResources)
	if proto.Unmarshal(wire, pod) != nil {
		return nil
	}
	return pod
}
