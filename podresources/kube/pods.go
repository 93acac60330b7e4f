package kube

import (
	"encoding/json"
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
	rejected  func(driver.Reason)
}

const podsPath = "/api/v1/pods"

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
		p.rejected(driver.ReasonMalformedPod)
		return podresources.PodFacts{}, false
	}
	_, facts, ok := podresources.NewPodFacts(&pod, p.selection)
	if !ok {
		p.rejected(driver.ReasonMalformedPod)
	}
	return facts, ok
}
