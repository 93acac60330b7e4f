package kube

import (
	"encoding/json"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// podFeed updates a set of pods.
type podFeed struct {
	pods      podStore
	now       func() time.Time
	selection *podresources.Selection
	rejected  func(driver.Reason)
}

// podStore is a set of pods by UID.
type podStore interface {
	Replace(pods []podresources.PodFacts, now time.Time)
	Set(pod podresources.PodFacts, now time.Time)
	Remove(uid string)
}

const podsPath = "/api/v1/pods"

func podQuery(node string) url.Values { return url.Values{"fieldSelector": {"spec.nodeName=" + node}} }

func (p *podFeed) fill() (add func(json.RawMessage), done func()) {
	var pods []podresources.PodFacts
	add = func(raw json.RawMessage) {
		if facts, ok := p.parse(raw); ok {
			pods = append(pods, facts)
		}
	}
	return add, func() { p.pods.Replace(pods, p.now()) }
}

func (p *podFeed) update(object json.RawMessage, gone bool) {
	facts, ok := p.parse(object)
	switch {
	case !ok:
	case gone:
		p.pods.Remove(facts.UID)
	default:
		p.pods.Set(facts, p.now())
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
