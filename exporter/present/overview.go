package present

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// overview is the large chart of a device: what it did, who held it, and when incidents began.
type overview struct {
	Begin, End string
	Lines      []sparkline // each from 0 to its highest value
	Marks      []chartMark // in the chart; Name is the text of the incident
	Bands      []band
	Height     int // of all bands
}

// band is the time in which a holder held the device. X and Width are percent of the chart.
type band struct {
	X, Width   string
	Y          int
	Name, What string
	Claim, Pod string // that it links to
}

// bandHeight is the height of a row of bands in pixels.
const bandHeight = 20

// maxBands bounds the rows of bands: a device may be shared by very many.
const maxBands = 8

// newOverview returns the large chart of the device with the charts, nil if nothing is recorded.
func newOverview(h recorder.History, devices []sparkline, incidents []*recorder.Incident, of Subject) *overview {
	lines := slices.DeleteFunc(slices.Clone(devices), func(s sparkline) bool {
		return !slices.Contains([]string{
			driver.Utilization.String(), driver.MemoryUsed.String(), driver.Power.String(), driver.IOBytes.String(),
		}, s.quantity)
	})
	if len(lines) == 0 || h.Chart == nil || len(h.Times) < 2 {
		return nil
	}
	along := newAxis(h.Times)
	out := &overview{
		Begin: Clock(h.Times[0]), End: Clock(h.Times[len(h.Times)-1]), Lines: lines[:min(len(lines), len(lineColours()))],
	}
	var moments []instant
	for _, i := range incidents {
		if of.Hit(i) {
			moments = append(moments, instant{i.Text + ", " + Clock(i.Onset), i.Onset})
		}
	}
	out.Marks = along.marks(moments)
	out.hold(&along, h.Holders)
	return out
}

// lineColours are the classes of the lines.
func lineColours() []string { return []string{"a", "b", "c", "d"} }

// Class is the class of a line.
func (o *overview) Class(line int) string { return lineColours()[line%len(lineColours())] }

// hold adds the bands of holders, each in the first row in which nobody else held the device then.
func (o *overview) hold(along *axis, holders []recorder.Holder) {
	holders = slices.DeleteFunc(slices.Clone(holders), func(h recorder.Holder) bool { return h.Admin })
	slices.SortStableFunc(holders, func(a, b recorder.Holder) int { return a.From.Compare(b.From) })
	var ends []float64 // of the last band of each row
	for i := range holders {
		h := &holders[i]
		from, to := along.within(h.From), chartWidth
		if h.To != nil {
			to = along.within(*h.To)
		}
		if to <= from {
			continue // before or after the chart
		}
		row := slices.IndexFunc(ends, func(end float64) bool { return end <= from })
		if row < 0 {
			if row = len(ends); row == maxBands {
				continue
			}
			ends = append(ends, 0)
		}
		ends[row] = to
		b := band{X: percentage(from), Width: percentage(to - from), Y: row * bandHeight}
		b.Pod, b.Claim = joined(h.Namespace, h.Pod), joined(h.Namespace, h.Claim)
		b.Name = cmp.Or(b.Pod, b.Claim)
		b.What = fmt.Sprintf("%s held it from %s", b.Name, Clock(h.From))
		if h.To != nil {
			b.What += " to " + Clock(*h.To)
		}
		o.Bands = append(o.Bands, b)
	}
	o.Height = len(ends) * bandHeight
}

func percentage(x float64) string { return fmt.Sprintf("%.2f%%", 100*x/chartWidth) }

// joined returns NAMESPACE/NAME, "" without a name.
func joined(namespace, name string) string {
	if name == "" {
		return ""
	}
	return namespace + "/" + name
}

// within returns the position of a time, or the end of the axis that is nearer.
func (a *axis) within(t time.Time) float64 {
	if x, on := a.at(t); on {
		return x
	}
	if t.Before(a.times[0]) {
		return 0
	}
	return chartWidth
}
