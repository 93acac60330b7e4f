package present

import (
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// measuredFor returns the part of the allocated time with readings, as text; "" for 95 % or more.
// In the rest of the time, the sums may be wrong by as much as the devices can do.
func measuredFor(seconds float64, total []recorder.Figure) string {
	for _, f := range total {
		if f.Quantity == heldSeconds && seconds < 0.95*f.ConsumedQuantity {
			return Duration(seconds) + " of " + Duration(f.ConsumedQuantity)
		}
	}
	return Duration(seconds)
}

// heldSeconds is the figure of a receipt that is not a quantity: the time for which devices were
// held.
const heldSeconds = "allocated_seconds"

// receiptSections describes the newest receipt of a claim.
func (v *view) receiptSections(claim string) []Section {
	if v.config.Recorder == nil {
		return nil
	}
	for _, r := range v.config.Recorder.Receipts() {
		if r.SubAccountName+"/"+r.ResourceName != claim {
			continue
		}
		s := Section{
			Title: "Receipt " + Clock(r.ChargePeriodStart) + " to " + Clock(r.ChargePeriodEnd),
			Head:  []string{"What", "Amount", "At most off by", "Measured for"},
		}
		for _, l := range [...]struct {
			name    string
			seconds *float64
		}{
			{"waited for the driver", r.Lifecycle.PreparationSeconds},
			{"idle until its first activity", r.Lifecycle.FirstActivitySeconds},
			{"idle after its last activity", r.Lifecycle.IdleEndSeconds},
		} {
			if l.seconds != nil {
				s.add(l.name, Duration(*l.seconds), "", "")
			}
		}
		for _, f := range r.Total {
			spec := specOf(v.catalogue, f.Quantity)
			name := strings.TrimSpace(strings.Join([]string{nameOf(f.Quantity), f.Labels["link"], f.Labels["direction"]}, " "))
			measured := ""
			if f.Quantity != heldSeconds { // the time itself is not measured
				measured = measuredFor(f.MeasuredSeconds, r.Total)
			}
			s.add(name, inUnit(f.ConsumedQuantity, spec), inUnit(*f.ErrorBound, spec), measured)
		}
		return []Section{s}
	}
	return nil
}
