package web

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// incidentQuery chooses the incidents that match all fields that are set.
type incidentQuery struct{ id, before, claim string }

// incidents answers ?id=ID with one incident and its recording. Without id, it answers with the
// incidents that match ?claim, from the position ?before on.
func (c Config) incidents(query url.Values) (any, finder, error) {
	of := incidentQuery{query.Get("id"), query.Get("before"), query.Get("claim")}
	if of.claim != "" && strings.Count(of.claim, "/") != 1 {
		return nil, nil, fmt.Errorf("claim=%q is not NAMESPACE/NAME", of.claim)
	}
	return of, func() any {
		out := present.IncidentsReport{Node: c.Node, Incidents: []*recorder.Incident{}}
		if of.id == "" {
			out.Incidents, out.Next = of.choose(c.Recorder.Incidents(), recorder.MaxIncidents)
		} else if one := c.Recorder.Incident(of.id); one != nil {
			out.Incidents = append(out.Incidents, one)
		}
		return out
	}, nil
}

// choose returns the matching incidents without their recordings, and the position after which
// further ones begin.
func (q *incidentQuery) choose(all []*recorder.Incident, most int) (some []*recorder.Incident, next string) {
	some = []*recorder.Incident{}
	for _, i := range all {
		switch {
		case q.before != "" && i.Position() >= q.before, q.claim != "" && !hits(i, q.claim):
			continue
		case len(some) == most:
			return some, some[len(some)-1].Position()
		}
		without := *i
		without.Chart = nil
		some = append(some, &without)
	}
	return some, ""
}

// hits reports whether an incident hit, or may have hit, a claim, given as NAMESPACE/NAME.
func hits(i *recorder.Incident, claim string) bool {
	return slices.Contains(i.Claims(), claim) || slices.Contains(i.PossibleClaims(), claim)
}
