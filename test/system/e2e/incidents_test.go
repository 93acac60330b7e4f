package e2e

import (
	"encoding/json"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// incidents returns the response of /api/v1/incidents.
func (p *program) incidents() []*recorder.Incident {
	var out present.IncidentsReport
	must.Do(p.t, json.Unmarshal(p.page("/api/v1/incidents").Body, &out))
	return out.Incidents
}
