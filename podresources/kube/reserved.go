package kube

import resourcev1 "k8s.io/api/resource/v1"

// reservations returns the names of the pods for which a claim is reserved, by UID, nil for none;
// other reports whether something other than pods also uses the claim.
func reservations(of []resourcev1.ResourceClaimConsumerReference) (pods map[string]string, other bool) {
	for _, c := range of {
		switch {
		case c.APIGroup != "" || c.Resource != "pods":
			other = true
		case c.UID != "":
			if pods == nil {
				pods = map[string]string{}
			}
			pods[string(c.UID)] = c.Name
		}
	}
	return pods, other
}

// toleration returns a toleration of a result (KEP-5055) in kubectl's format of taints. An omitted
// field matches anything.
func toleration(t resourcev1.DeviceToleration) string {
	s := t.Key
	if t.Value != "" {
		s += "=" + t.Value
	}
	if t.Effect != "" {
		s += ":" + string(t.Effect)
	}
	return s
}
