package kube

import (
	"encoding/json"
	"net/url"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// podFeed keeps a set of the node's pods up to date.
type podFeed struct {
	pods      *podresources.PodSet
	selection *podresources.Selection
	rejected  func(reason string)
}

const podsPath = "/api/v1/pods"

func podQuery(node string) url.Values { return url.Values{"fieldSelector": {"spec.nodeName=" + node}} }

func (p *podFeed) replace(objects []json.RawMessage) {
	pods := make(map[podresources.Pod]podresources.PodFacts, len(objects))
	for _, raw := range objects {
		if name, facts, ok := p.parse(raw); ok {
			pods[name] = facts
		}
	}
	p.pods.Replace(pods)
}

func (p *podFeed) update(object json.RawMessage, gone bool) {
	name, facts, ok := p.parse(object)
	switch {
	case !ok:
	case gone:
		p.pods.Remove(name, facts.UID)
	default:
		p.pods.Set(name, facts)
	}
}

func (p *podFeed) parse(raw json.RawMessage) (podresources.Pod, podresources.PodFacts, bool) {
	var pod corev1.Pod
	if json.Unmarshal(raw, &pod) != nil {
		p.rejected("malformed_pod")
		return podresources.Pod{}, podresources.PodFacts{}, false
	}
	name, facts, ok := podresources.NewPodFacts(&pod, p.selection)
	if !ok {
		p.rejected("malformed_pod")
	}
	return name, facts, ok
}
