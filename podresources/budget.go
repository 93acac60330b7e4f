package podresources

import "slices"

// Bounds limit what is read and kept of one answer of the kubelet. Zero means [FullBounds]. Beyond
// the bounds, the least useful data is dropped first: device IDs of one pod and resource (plugins
// for memory list one for each MiB), then pods without devices, then the largest pods, so that the
// fewest pods are lost.
type Bounds struct {
	Answer int // highest size of an answer, in bytes
	Pods   int // pods that are kept
	Bytes  int // total size of these pods, as the kubelet sends them
	Rows   int // allocations that are kept, plus the pods of each
}

// FullBounds returns the bounds for a program with enough memory.
func FullBounds() Bounds {
	return Bounds{Answer: MaxAnswer, Pods: maxAnswerPods, Bytes: maxAnswerBytes, Rows: maxRows}
}

// Times returns the bounds multiplied by a fraction, 0 to 1.
func (b Bounds) Times(share float64) Bounds {
	of := func(n int) int { return max(1, int(share*float64(n))) }
	return Bounds{Answer: of(b.Answer), Pods: of(b.Pods), Bytes: of(b.Bytes), Rows: of(b.Rows)}
}

// orFull returns the bounds, or FullBounds in place of zero.
func (b Bounds) orFull() Bounds {
	if b == (Bounds{}) {
		return FullBounds()
	}
	return b
}

const (
	maxPluginIDs   = 128      // device IDs of one pod and resource
	maxAnswerPods  = MaxPods  // see Bounds
	maxAnswerBytes = 8 << 20  // see Bounds
	maxPod         = 24 << 20 // highest size of a pod, in bytes: that of a stuck one grows without end
	// stuckPod is the size, in bytes, from which a pod is searched for what it lists twice: a claim of
	// 32 devices with names of usual length takes 70 kB.
	stuckPod = 256 << 10
)

// selection has the pods of an answer that are kept: the most useful ones. It does not depend on
// their order.
type selection struct {
	most  Bounds
	pods  []*decodedPod
	bytes int
	lost  int // number of pods that are not kept
}

// add adds a pod. The bounds are exceeded by a factor of two at most.
func (s *selection) add(p *decodedPod) {
	s.pods = append(s.pods, p)
	s.bytes += p.cost
	s.cut(2)
}

// cut drops what is beyond the bounds, if so many times the bounds are exceeded.
func (s *selection) cut(times int) {
	if len(s.pods) <= times*s.most.Pods && s.bytes <= times*s.most.Bytes {
		return
	}
	slices.SortFunc(s.pods, (*decodedPod).compare)
	kept := 0
	for s.bytes = 0; kept < min(len(s.pods), s.most.Pods) && s.bytes+s.pods[kept].cost <= s.most.Bytes; kept++ {
		s.bytes += s.pods[kept].cost
	}
	s.lost += len(s.pods) - kept
	clear(s.pods[kept:])
	s.pods = s.pods[:kept]
}
