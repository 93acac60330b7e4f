package podresources

import (
	"cmp"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Decoder decodes successive answers of List. A pod with the same bytes as in the answer before is
// the same message, and an answer with the same pods is the same pointer, whatever their order,
// since the kubelet lists them in the order of a map. Therefore a result must not be changed. The
// zero value is ready for use. It is safe for concurrent use.
//
// At 64 devices and 500 pods an answer as before takes 0.4 ms and 0.2 MB, and by the generated code
// 26 ms and 7 MB; 18 MB of one stuck pod take 0.1 s and 1 MB instead of 0.5 s and 97 MB
// (BenchmarkAnswer on two shared cores).
type Decoder struct {
	Bounds Bounds

	mu     sync.Mutex
	seeds  [2]maphash.Seed
	answer *v1.ListPodResourcesResponse
	pods   map[podHash]*decodedPod // pods of answer
	lost   int                     // number of pods that are left out of answer
}

// podHash identifies the bytes of a pod.
type podHash [2]uint64

// decodedPod is a pod of an answer.
type decodedPod struct {
	pod   *v1.PodResources // nil if it cannot be decoded
	hash  podHash
	empty bool // without devices
	cost  int  // bytes that are kept of it
}

// compare orders pods by their use: the least useful ones come last. The order of the pods in the
// answer does not matter.
func (p *decodedPod) compare(other *decodedPod) int {
	if p.empty != other.empty {
		if p.empty {
			return 1
		}
		return -1
	}
	if p.empty {
		return slices.Compare(p.hash[:], other.hash[:])
	}
	return cmp.Or(cmp.Compare(p.cost, other.cost), slices.Compare(p.hash[:], other.hash[:]))
}

// Decode decodes an answer of List, which arrives in pieces. protobuf rejects the whole message for
// a single name that is not UTF-8; here, only pods that cannot be decoded are nil. Pods beyond the
// bounds are left out; [Parse] counts them. The bytes are not kept; one pod at a time is copied.
func (d *Decoder) Decode(wire mem.BufferSlice) (*v1.ListPodResourcesResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seeds[0] == (maphash.Seed{}) {
		d.seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	}
	kept, err := d.read(wire)
	if err != nil {
		return nil, err
	}
	known := make(map[podHash]*decodedPod, len(kept.pods))
	for _, p := range kept.pods {
		known[p.hash] = p
	}
	if d.answer != nil && kept.lost == d.lost && len(kept.pods) == len(d.answer.PodResources) &&
		len(known) == len(kept.pods) && maps.Equal(known, d.pods) {
		return d.answer, nil
	}
	d.answer, d.pods, d.lost = &v1.ListPodResourcesResponse{}, known, kept.lost
	for _, p := range kept.pods {
		d.answer.PodResources = append(d.answer.PodResources, p.pod)
	}
	if kept.lost > 0 {
		d.answer.ProtoReflect().SetUnknown(withLeftOut(nil, uint64(kept.lost)))
	}
	return d.answer, nil
}

// read returns the pods of an answer that are kept. Those of the answer before are the same ones.
func (d *Decoder) read(wire mem.BufferSlice) (*selection, error) {
	in := pieces{Reader: wire.Reader()}
	defer func() { _ = in.Close() }()
	kept := &selection{most: d.Bounds.orFull()}
	for in.Remaining() > 0 {
		number, size, ok, err := in.begin(0)
		if err != nil {
			return nil, err
		}
		if !ok || number != podResourcesField {
			if err := in.pass(size); err != nil {
				return nil, err
			}
			continue
		}
		content, err := in.pod(size)
		switch {
		case errors.Is(err, errLargePod):
			kept.lost++
		case err != nil:
			return nil, err
		default:
			d.keep(kept, content)
		}
	}
	kept.cut()
	return kept, nil
}

// keep adds the pod with these bytes, if it may be kept: that of the answer before, or a new one.
func (d *Decoder) keep(kept *selection, content []byte) {
	hash := podHash{maphash.Bytes(d.seeds[0], content), maphash.Bytes(d.seeds[1], content)}
	p := d.pods[hash]
	if p == nil {
		made := decodedPod{hash: hash, empty: !hasDevices(content), cost: len(content) - surplus(content)}
		if !kept.admits(&made) {
			return // most of a million pods, without memory for each
		}
		p = &decodedPod{decodePod(content), made.hash, made.empty, made.cost}
	}
	if kept.admits(p) {
		kept.add(p)
	}
}

// decodePod reads one pod, without its surplus device IDs; nil: it cannot be decoded.
func decodePod(wire []byte) *v1.PodResources {
	pod := new(v1.PodResources)
	if proto.Unmarshal(wire, pod) != nil {
		return nil
	}
	for _, container := range pod.Containers {
		for _, d := range container.Devices {
			if more := len(d.DeviceIds) - maxPluginIDs; more > 0 {
				slices.Sort(d.DeviceIds)
				d.DeviceIds = slices.Clone(d.DeviceIds[:maxPluginIDs])
				d.ProtoReflect().SetUnknown(withLeftOut(nil, uint64(more)))
			}
		}
	}
	return pod
}

// hasDevices reports whether a pod has devices.
func hasDevices(pod []byte) bool {
	found := false
	eachField(pod, containersField, func(container []byte) {
		eachField(container, devicesField, func([]byte) { found = true })
		eachField(container, dynamicResourcesField, func([]byte) { found = true })
	})
	return found
}

// surplus returns the size of a pod's surplus device IDs.
func surplus(pod []byte) (size int) {
	if len(pod) < largePod {
		return 0
	}
	eachField(pod, containersField, func(container []byte) {
		eachField(container, devicesField, func(devices []byte) {
			n := 0
			eachField(devices, deviceIDsField, func(id []byte) {
				if n++; n > maxPluginIDs {
					size += len(id)
				}
			})
		})
	})
	return size
}

// eachField calls f with each value of a field of a message. It stops at the first malformed field.
func eachField(message []byte, field protowire.Number, f func(value []byte)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(number, kind, message[n:])
		if size < 0 {
			return
		}
		if number == field && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[n:])
			f(value)
		}
		message = message[n+size:]
	}
}
