package top

import (
	"context"
	"net/url"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// Subject is the subject of details.
type Subject struct {
	View View
	Name string // DRIVER/POOL/DEVICE or DEVICE, NAMESPACE/NAME, or the ID of an incident

	from string // the exporter; "": any
}

// of returns the subject as the presenter knows it.
func (s *Subject) of() present.Subject {
	switch s.View {
	case ViewClaims:
		return present.Subject{Claim: s.Name}
	case ViewPods:
		return present.Subject{Pod: s.Name}
	case ViewIncidents:
		return present.Subject{Incident: s.Name}
	case ViewDevices, ViewNamespaces:
	}
	return present.Subject{Device: s.Name}
}

// describe describes a subject by the answers of a node, with what is recorded of it; nil: nothing.
// It returns nothing if the node does not have the subject.
func (a *answer) describe(of Subject, recording *recorder.Chart) []string {
	d := present.Describe(driver.Standard(), a.report, a.incidents, recording, of.of())
	if len(d.Sections) == 0 {
		return nil
	}
	return d.Lines()
}

// recording gets the recording of a subject.
func (a *answer) recording(ctx context.Context, of Subject) (*recorder.Chart, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	memory := newMemory().Open(maxNode)
	if of.View == ViewIncidents {
		found, err := a.node.incidents(ctx, memory, of.Name)
		if err != nil || len(found.Incidents) == 0 {
			return nil, err
		}
		return found.Incidents[0].Chart, nil
	}
	kind := map[View]string{ViewDevices: "device", ViewClaims: "claim", ViewPods: "pod"}[of.View]
	found, err := a.node.history(ctx, memory, url.Values{kind: {of.Name}})
	return found.Chart, err
}
