package web

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// FitReport is the smallest fit for each device of each claim, as /api/v1/fit
// serves it.
type FitReport struct {
	Time   time.Time        `json:"time"`
	Node   string           `json:"node"`
	Claims []ClaimFitReport `json:"claims"`
}

// ClaimFitReport is the smallest fit for a device of a claim. What is not known is omitted.
type ClaimFitReport struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	driver.ID
	Text            string     `json:"text"`             // the same as a sentence
	Reason          fit.Reason `json:"reason,omitempty"` // why there is no alternative; omitted: there is one
	MeasuredSeconds float64    `json:"measuredSeconds"`  // how long both activity and memory were measured
	Ended           *time.Time `json:"ended,omitempty"`  // when the claim ended; omitted: it holds the device
	// What it needs is a part of what it holds, from 0 to 1, with the margin.
	Memory      *MemoryFitReport   `json:"memory,omitempty"`
	Activity    *ActivityFitReport `json:"activity,omitempty"`
	Alternative *AlternativeReport `json:"alternative,omitempty"`
}

// MemoryFitReport is how much memory a claim holds, and used at most.
type MemoryFitReport struct {
	HeldBytes   float64 `json:"heldBytes"`
	PeakBytes   float64 `json:"peakBytes"`
	NeededRatio float64 `json:"neededRatio"`
}

// ActivityFitReport is the part of the device that a claim kept busy, and did not exceed in 99.9 %
// of the time.
type ActivityFitReport struct {
	P999        float64 `json:"p999"`
	NeededRatio float64 `json:"neededRatio"`
}

// AlternativeReport is the smallest thing on the node that would do.
type AlternativeReport struct {
	Kind fit.Kind `json:"kind"`
	Name string   `json:"name"` // the profile of a partition, or its device; what a share consumes
	// Device is one that is, or offers, the alternative.
	Device      string             `json:"device,omitempty"`
	Capacity    map[string]float64 `json:"capacity,omitempty"` // to request, in the resource's base unit
	MemoryBytes float64            `json:"memoryBytes,omitempty"`
	UnusedRatio float64            `json:"unusedRatio"` // the part of what the claim holds that it would leave
}

// NewFitReport makes the report of a snapshot.
func NewFitReport(s *exposition.Snapshot, node string) FitReport {
	r := FitReport{Time: s.Time.UTC(), Node: node, Claims: []ClaimFitReport{}}
	for _, claims := range [2][]ledger.Holder{s.Claims, s.EarlierClaims} {
		for i := range claims {
			if claims[i].Advice != nil {
				r.Claims = append(r.Claims, claimFit(&claims[i]))
			}
		}
	}
	return r
}

func claimFit(h *ledger.Holder) ClaimFitReport {
	a := h.Advice
	r := ClaimFitReport{
		Namespace: h.Namespace, Name: h.Name, UID: h.UID, ID: h.Device,
		Text: a.Text(), Reason: a.Reason, MeasuredSeconds: a.Measured.Seconds(),
	}
	if ended := h.Ended.UTC(); !h.Ended.IsZero() {
		r.Ended = &ended
	}
	if !a.Known() {
		return r
	}
	r.Memory = &MemoryFitReport{HeldBytes: a.HeldMemory, PeakBytes: a.Memory, NeededRatio: a.NeededMemory}
	r.Activity = &ActivityFitReport{P999: a.Activity, NeededRatio: a.NeededActivity}
	if a.Reason == fit.Advised {
		r.Alternative = &AlternativeReport{
			Kind: a.Alternative.Kind, Name: a.Alternative.Name, Device: a.Alternative.Device,
			MemoryBytes: a.Alternative.Memory, UnusedRatio: a.Unused,
		}
		for _, c := range a.Alternative.Capacity {
			if r.Alternative.Capacity == nil {
				r.Alternative.Capacity = map[string]float64{}
			}
			r.Alternative.Capacity[c.Resource] = c.Value
		}
	}
	return r
}
