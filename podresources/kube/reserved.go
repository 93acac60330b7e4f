package kube

// consumer is one of status.reservedFor.
type consumer struct {
	APIGroup string `json:"apiGroup"`
	Resource string `json:"resource"`
	Name     string `json:"name"`
	UID      string `json:"uid"`
}

// reservations returns the names of the pods for which a claim is reserved, by UID, nil for none;
// other reports whether something other than pods also uses the claim.
func reservations(of []consumer) (pods map[string]string, other bool) {
	for _, c := range of {
		switch {
		case c.APIGroup != "" || c.Resource != "pods":
			other = true
		case c.UID != "":
			if pods == nil {
				pods = map[string]string{}
			}
			pods[c.UID] = c.Name
		}
	}
	return pods, other
}

// toleration is one of a result's tolerations (KEP-5055).
type toleration struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
}

// String returns the toleration in kubectl's format of taints. An omitted field matches anything.
func (t toleration) String() string {
	s := t.Key
	if t.Value != "" {
		s += "=" + t.Value
	}
	if t.Effect != "" {
		s += ":" + t.Effect
	}
	return s
}

func tolerations(of []toleration) []string {
	var out []string
	for _, t := range of {
		out = append(out, t.String())
	}
	return out
}
