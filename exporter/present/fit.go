package present

import (
	"fmt"
	"math"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// FitReport is the smallest fit for each device of each claim, as /api/v1/fit
// serves it.
type FitReport struct {
	Time   time.Time        `json:"time"`
	Node   string           `json:"node"`
	Claims []ClaimFitReport `json:"claims"`
}

// ClaimFitReport is the smallest fit for a device of a claim. Unknown values are omitted.
type ClaimFitReport struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	driver.ID
	Text            string     `json:"text"`             // the report as a sentence
	Reason          fit.Reason `json:"reason,omitempty"` // why there is no alternative; omitted: there is one
	MeasuredSeconds float64    `json:"measuredSeconds"`  // for how long both activity and memory were measured
	// MeasuredSince is set if the claim began before that time, from when on it was measured.
	MeasuredSince *time.Time `json:"measuredSince,omitempty"`
	Ended         *time.Time `json:"ended,omitempty"` // when the claim ended; omitted: it holds the device
	// NeededRatio is the needed part of what the claim holds, from 0 to 1, with the margin.
	Memory      *MemoryFitReport   `json:"memory,omitempty"`
	Activity    *ActivityFitReport `json:"activity,omitempty"`
	Alternative *AlternativeReport `json:"alternative,omitempty"`
}

// MemoryFitReport is the memory that a claim holds, and its peak use.
type MemoryFitReport struct {
	HeldBytes   float64 `json:"heldBytes"`
	PeakBytes   float64 `json:"peakBytes"`
	NeededRatio float64 `json:"neededRatio"`
}

// ActivityFitReport is the part of the device that a claim kept busy: P999 is not exceeded in 99.9
// % of the time.
type ActivityFitReport struct {
	P999        float64 `json:"p999"`
	NeededRatio float64 `json:"neededRatio"`
}

// AlternativeReport is the smallest device, partition or share on the node that fits the claim.
type AlternativeReport struct {
	Kind fit.Kind `json:"kind"`
	Name string   `json:"name"` // of a share: the capacity that it consumes; of a partition: its profile or device
	// Device is an example: the alternative itself, or the device that offers it.
	Device      string             `json:"device,omitempty"`
	Capacity    map[string]float64 `json:"capacity,omitempty"` // to request, in the resource's base unit
	MemoryBytes float64            `json:"memoryBytes,omitempty"`
	UnusedRatio float64            `json:"unusedRatio"` // the part of the held device that the claim does not need
}

// NewFitReport makes the report of a snapshot.
func NewFitReport(s *exposition.Snapshot, node string) FitReport {
	r := FitReport{Time: s.Time.UTC(), Node: node, Claims: []ClaimFitReport{}}
	for _, claims := range [2][]book.Holder{s.Claims, s.EarlierClaims} {
		for i := range claims {
			if claims[i].Advice != nil {
				r.Claims = append(r.Claims, claimFit(&claims[i]))
			}
		}
	}
	return r
}

func claimFit(h *book.Holder) ClaimFitReport {
	a := h.Advice
	r := ClaimFitReport{
		Namespace: h.Namespace, Name: h.Name, UID: h.UID, ID: h.Device,
		Text: FitText(a), Reason: a.Reason, MeasuredSeconds: a.Measured.Seconds(), Ended: recorder.Moment(h.Ended),
	}
	if a.Partial {
		r.MeasuredSince = recorder.Moment(a.Since)
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

// FitText returns an advice as a sentence: gpu-3, 80 GiB: peak 11 GiB and p99.9 activity 18 % of
// 26.0 h: 1g.20gb fits; 86 % unused. The activity is that of the device itself.
func FitText(a *fit.Advice) string {
	if !a.Known() {
		return a.Device.Device + ": " + fitMeaning(a.Reason)
	}
	text := fmt.Sprintf("%s, %s: peak %s and p99.9 activity %s of %s", a.Device.Device, Bytes(a.HeldMemory),
		Bytes(a.Memory), atMost(a.Activity), Duration(a.Measured.Seconds()))
	if a.Partial {
		text += " since " + Clock(a.Since) + " (it began before that)"
	}
	switch {
	case a.Reason == fit.NothingSmaller && a.Veto != fit.NoVeto:
		return text + ": nothing smaller fits: " + vetoText(a)
	case a.Reason == fit.NothingSmaller:
		return text + ": " + fitMeaning(a.Reason)
	case a.Alternative.Kind == fit.FewerDevices:
		return text + ": the claim's other devices suffice"
	case a.Ended != nil:
		return text + ": " + a.Alternative.Name + " would have fitted; " + percentOf(a.Unused) + " unused"
	default:
		return text + ": " + a.Alternative.Name + " fits; " + percentOf(a.Unused) + " unused"
	}
}

// atMost formats a share, rounded up.
func atMost(ratio float64) string { return percentOf(math.Ceil(100*ratio) / 100) }

// vetoText says why nothing smaller fits.
func vetoText(a *fit.Advice) string {
	return map[fit.Veto]string{
		fit.VetoPeers: "up to " + scaled(a.Peers, "B/s", 1000) +
			" went to other devices, over links that parts of a device do not have",
		fit.VetoEngine: "the engine " + a.Engine + " was busy for up to " + atMost(a.Media) +
			", which parts of a device have fewer of, or none",
		fit.VetoBandwidth: atMost(a.Bandwidth) + " of the bandwidth of the memory was used",
		fit.VetoCopies:    "the copy engines were busy for up to " + atMost(a.Copies),
		fit.VetoSaving:    "it would leave less than a tenth",
	}[a.Veto]
}

// fitMeaning returns the meaning of the reason why there is no alternative.
func fitMeaning(r fit.Reason) string {
	return map[fit.Reason]string{
		fit.TooShort:       "the claim has not been measured for long enough",
		fit.NotMeasured:    "the activity or the memory of the device is not measured",
		fit.Divided:        "several claims held the device, and it is not known what each of them used",
		fit.SeveralShares:  "the claim has several shares of the device, or admin access",
		fit.UnknownSize:    "the size of the device, or of the share, is not known",
		fit.ReadRarely:     "the memory is read too rarely: a peak between two readings is not seen",
		fit.Growing:        "the peak of the memory grew in the second half of the time in which it was measured",
		fit.RarePeak:       "the memory was near its peak only for moments, and the next peak may be higher",
		fit.Contradicted:   "at some time the utilization was 0 although the device worked",
		fit.NothingSmaller: "nothing smaller is offered into which the claim would have fitted",
	}[r]
}
