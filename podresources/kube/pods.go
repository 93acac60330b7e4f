package kube

import (
	"context"
	"encoding/json"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// podFeed gives a sink the pods of lists and watches.
type podFeed struct {
	sink      podresources.PodSink
	now       func() time.Time
	selection *podresources.Selection
	reject    func(driver.Rejections)
}

const podsPath = "/api/v1/pods"

// podPath returns the path of a pod.
func podPath(namespace, name string) string {
	return "/api/v1/namespaces/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name)
}

func podSelector(node string) string { return "spec.nodeName=" + node }

func (p *podFeed) fill() (add func(json.RawMessage), done func(asked time.Time)) {
	var pods []podresources.PodFacts
	add = func(raw json.RawMessage) {
		if facts, ok := p.parse(raw); ok && len(pods) < podresources.MaxPods {
			pods = append(pods, facts)
		}
	}
	return add, func(asked time.Time) { p.sink.PodsListed(pods, false, asked) }
}

func (p *podFeed) update(object json.RawMessage, gone bool) {
	facts, ok := p.parse(object)
	switch {
	case !ok:
	case gone:
		p.sink.PodDeleted(facts.UID, p.now())
	default:
		p.sink.PodChanged(facts, p.now())
	}
}

func (p *podFeed) parse(raw json.RawMessage) (podresources.PodFacts, bool) {
	var pod corev1.Pod
	if json.Unmarshal(raw, &pod) != nil {
		p.reject(driver.Rejections{driver.ReasonMalformedPod: 1})
		return podresources.PodFacts{}, false
	}
	_, facts, ok := podresources.NewPodFacts(&pod, p.selection)
	if !ok {
		p.reject(driver.Rejections{driver.ReasonMalformedPod: 1})
	}
	return facts, ok
}

// SourceNominated is the source of the pods that wait to be bound to the node.
const SourceNominated = "nominated"

// nominatedSelector selects the pods for which the scheduler has chosen the node but which it has
// not bound. The scheduler sets status.nominatedNodeName before it waits for the binding conditions
// of a claim's devices (KEP-5278, on since Kubernetes 1.35). The API server has an index of
// spec.nodeName, so that it examines only pods without a node.
func nominatedSelector(node string) string { return "spec.nodeName=,status.nominatedNodeName=" + node }

// nominatedPods gives a Book the pods that wait to be bound to the node.
type nominatedPods struct{ book Book }

var _ podresources.PodSink = nominatedPods{}

// PodsListed implements [podresources.PodSink].
func (n nominatedPods) PodsListed(pods []podresources.PodFacts, _ bool, asked time.Time) {
	for i := range pods {
		pods[i].Nominated = true
	}
	n.book.NominatedListed(pods, asked)
}

// PodChanged implements [podresources.PodSink].
func (n nominatedPods) PodChanged(pod podresources.PodFacts, at time.Time) {
	pod.Nominated = true
	n.book.NominatedChanged(pod, at)
}

// PodDeleted implements [podresources.PodSink].
func (n nominatedPods) PodDeleted(uid string, at time.Time) { n.book.NominatedGone(uid, at) }

// FollowNominated gives the Book the pods that wait to be bound to the node until ctx ends. It uses
// one list and watch, which start when needed first returns true: when a device of the node has
// binding conditions. If the pods may not be listed, none is known.
func (n *Node) FollowNominated(ctx context.Context, needed func() bool) {
	for !needed() {
		if !driver.Pause(ctx, neededAfter) {
			return
		}
	}
	n.followOptional(ctx, SourceNominated,
		func() *feed { return n.podFeed(nominatedPods{n.config.Book}, nominatedSelector(n.config.Name)) },
		func() { n.config.Book.NominatedListed(nil, n.config.Now()) })
}
