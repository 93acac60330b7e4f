package invariant

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/standstill"
)

// Containers records which pods run on a node, by its container runtime alone. Nothing in it comes
// from the API server or the kubelet. It is safe for concurrent use.
type Containers struct {
	mu    sync.Mutex
	pods  map[types.UID]*run
	asked time.Time // the request of the last answer
	last  time.Time // the last answer
}

// run has the times in which a pod had a ready sandbox, and in which one of its containers ran.
type run struct{ ready, running []interval }

// Observe adds an answer of the runtime: the pods with a ready sandbox, and whether one of their
// containers runs. asked and at are the times of the request and the answer, which never decrease
// from call to call.
func (c *Containers) Observe(asked, at time.Time, ready map[types.UID]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pods == nil {
		c.pods = map[types.UID]*run{}
	}
	before := cmp.Or(c.asked, at)
	for uid := range ready {
		if c.pods[uid] == nil {
			c.pods[uid] = &run{}
		}
	}
	for uid, r := range c.pods {
		runs, is := ready[uid]
		r.ready = observe(r.ready, before, at, is, true)
		r.running = observe(r.running, at, asked, runs, false)
	}
	c.asked, c.last = asked, at
}

// holdingPod is a pod of a snapshot that holds devices by a claim. Its UID may be unknown.
type holdingPod struct {
	uid       types.UID
	namespace string
	name      string // NAMESPACE/NAME
}

// holdingPods returns the pods that hold devices by a claim, with the reason of one hold.
func holdingPods(r *present.Report) map[holdingPod]podresources.Reason {
	out := map[holdingPod]podresources.Reason{}
	for i := range r.Devices {
		for _, s := range r.Devices[i].Shares {
			for _, h := range s.Holds {
				if s.Claim != "" {
					out[holdingPod{types.UID(h.UID), s.Namespace, h.Pod}] = h.Reason
				}
			}
		}
	}
	return out
}

// compareContainers compares a snapshot with the runtime. A pod that the kubelet lists with a claim
// must be shown while its containers run, and no pod may be shown after its sandbox has ended,
// apart from the time by which the exporter may be late. The end of a pod while the process that
// notices ends was stopped (Ownership.Stopped) is not checked, nor that of one that an exporter
// keeps until the API server knows of it (Ownership.EndsFromServer).
func (o *Ownership) compareContainers(s *snapshot, late time.Duration) []error {
	from, until := s.at.Add(-late), s.at.Add(late)
	var wrong []error
	for h, reason := range s.pods {
		r := o.Containers.pods[h.uid]
		if r == nil || o.Except[h.namespace] || o.Contradicted[h.namespace] || meets(r.ready, s.at, until) {
			continue
		}
		ended := r.ended(s.at)
		if ended.IsZero() {
			continue // waiting to be started
		}
		o.compared++
		if o.Stopped != nil && (standstill.Span{From: ended.Add(-late), To: ended.Add(late)}).Overlap(o.Stopped()) > 0 ||
			o.EndsFromServer && reason == podresources.ReasonRestarted && meets(o.Truth.known[h.uid], from, s.at) {
			continue
		}
		o.shown = max(o.shown, s.at.Sub(ended))
		if ended.Before(from) {
			wrong = append(wrong, fmt.Errorf("pod %s, %s, holds devices (%s), and its sandbox ended at %s",
				h.name, h.uid, reason, ended.Format(time.StampMilli)))
		}
	}
	for uid, p := range o.Truth.pods {
		h := holdingPod{uid, p.namespace, p.namespace + "/" + p.name}
		r := o.Containers.pods[uid]
		if r == nil || o.Except[h.namespace] || o.Contradicted[h.namespace] ||
			!covers(r.running, from, until) || !covers(p.listed, from, until) {
			continue
		}
		o.compared++
		_, known := s.pods[h]
		h.uid = ""
		_, named := s.pods[h]
		if !known && !named {
			wrong = append(wrong, fmt.Errorf("a container of pod %s, %s, runs, and the pod holds nothing", h.name, uid))
		}
	}
	return wrong
}

// ended returns when the pod's last sandbox before a time ended.
func (r *run) ended(before time.Time) (at time.Time) {
	for _, i := range r.ready {
		if i.from.Before(before) {
			at = i.until
		}
	}
	return at
}

// Shown returns the longest time for which a pod was shown as a holder after its sandbox had ended.
func (o *Ownership) Shown() time.Duration { return o.shown }
