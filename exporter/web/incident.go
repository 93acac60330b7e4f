package web

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// incidentQuery chooses the incidents that match all fields that are set.
type incidentQuery struct {
	id, before, kind, claim string
	since                   time.Time // matches incidents that are open, or happened after it
	limit                   int
}

// maxIncidents is the default limit of incidents in an answer: all.
const maxIncidents = recorder.MaxIncidents

// incidents answers ?id=ID with one incident and its recording. Without id, it answers with the
// incidents that match ?kind, ?claim and ?since, at most ?limit, from the position ?before on.
func (c Config) incidents(query url.Values) (any, finder, error) {
	of := incidentQuery{
		id: query.Get("id"), before: query.Get("before"), kind: query.Get("kind"), claim: query.Get("claim"),
		limit: maxIncidents,
	}
	if of.kind != "" && !slices.Contains(recorder.Kinds(), recorder.Kind(of.kind)) {
		return nil, nil, fmt.Errorf("kind=%q is none of %v", of.kind, recorder.Kinds())
	}
	if of.claim != "" && strings.Count(of.claim, "/") != 1 {
		return nil, nil, fmt.Errorf("claim=%q is not NAMESPACE/NAME", of.claim)
	}
	if text := query.Get("limit"); text != "" {
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 1 {
			return nil, nil, fmt.Errorf("limit=%q is not a number above 0", text)
		}
		of.limit = limit
	}
	if text := query.Get("since"); text != "" {
		since, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, nil, fmt.Errorf("since=%q is not a time as RFC 3339 has it", text)
		}
		of.since = since
	}
	return of, func() any {
		out := present.IncidentsReport{Node: c.Node, Incidents: []*recorder.Incident{}}
		if of.id == "" {
			out.Incidents, out.Next = of.choose(c.Recorder.Incidents())
		} else if one := c.Recorder.Incident(of.id); one != nil {
			out.Incidents = append(out.Incidents, one)
		}
		return out
	}, nil
}

// choose returns the matching incidents without their recordings, and the position after which
// further ones begin.
func (q *incidentQuery) choose(all []*recorder.Incident) (some []*recorder.Incident, next string) {
	some = []*recorder.Incident{}
	for _, i := range all {
		switch {
		case q.before != "" && i.Position() >= q.before, q.kind != "" && string(i.Kind) != q.kind,
			q.claim != "" && !hits(i, q.claim), !i.Open() && i.Last.Before(q.since):
			continue
		case len(some) == q.limit:
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
