package recorder

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// Receipt is what a claim used from its start to its end. Fields of the FinOps Open Cost and Usage
// Specification (FOCUS 1.2) have the names of that specification.
type Receipt struct {
	ID                string    `json:"id"`
	ChargeCategory    string    `json:"ChargeCategory"` // Usage
	ChargePeriodStart time.Time `json:"ChargePeriodStart"`
	ChargePeriodEnd   time.Time `json:"ChargePeriodEnd"`
	ResourceID        string    `json:"ResourceId,omitempty"` // the UID of the claim
	ResourceName      string    `json:"ResourceName"`         // its name
	ResourceType      string    `json:"ResourceType"`         // ResourceClaim
	SubAccountName    string    `json:"SubAccountName"`       // its namespace
	// Partial reports that the claim held a device before the exporter's first answer from the
	// kubelet. The use before that is not in the receipt.
	Partial bool `json:"partial,omitempty"`
	// Lifecycle has the times of the claim's states, and the durations between them.
	Lifecycle Lifecycle       `json:"lifecycle"`
	Pods      []ReceiptPod    `json:"pods"`
	Devices   []ReceiptDevice `json:"devices"`
	Total     []Figure        `json:"total"` // of all devices
}

// Lifecycle has the times at which a claim reached its states, and the seconds between them, for
// all of its devices on the node. Unknown values are absent.
type Lifecycle struct {
	Allocated     *time.Time `json:"allocated,omitempty"` // from the claim's object, to the second
	Waiting       *time.Time `json:"waiting,omitempty"`   // the claim is allocated, and a pod on this node uses it
	Prepared      *time.Time `json:"prepared,omitempty"`  // the driver has written its CDI spec, or answered
	FirstActivity *time.Time `json:"firstActivity,omitempty"`
	LastActivity  *time.Time `json:"lastActivity,omitempty"`
	Ended         *time.Time `json:"ended,omitempty"`
	Unprepared    *time.Time `json:"unprepared,omitempty"` // its CDI spec was removed

	PreparationSeconds   *float64 `json:"preparationSeconds,omitempty"`   // from waiting to prepared
	FirstActivitySeconds *float64 `json:"firstActivitySeconds,omitempty"` // from prepared to firstActivity
	ActivitySeconds      *float64 `json:"activitySeconds,omitempty"`      // from firstActivity to lastActivity
	IdleEndSeconds       *float64 `json:"idleEndSeconds,omitempty"`       // from lastActivity to ended
	UnpreparationSeconds *float64 `json:"unpreparationSeconds,omitempty"` // from ended to unprepared
}

// newLifecycle returns the known part of a claim's life.
func newLifecycle(l *book.Life) Lifecycle {
	seconds := func(took time.Duration, known bool) *float64 {
		if !known {
			return nil
		}
		s := took.Seconds()
		return &s
	}
	return Lifecycle{
		Allocated: Moment(l.Allocated), Waiting: Moment(l.Waiting), Prepared: Moment(l.Prepared),
		FirstActivity: Moment(l.FirstActive), LastActivity: Moment(l.LastActive), Ended: Moment(l.Ended),
		Unprepared:         Moment(l.Unprepared),
		PreparationSeconds: seconds(l.Preparation()), FirstActivitySeconds: seconds(l.FirstActivity()),
		ActivitySeconds: seconds(l.Activity()), IdleEndSeconds: seconds(l.IdleEnd()),
		UnpreparationSeconds: seconds(l.Unpreparation()),
	}
}

// Moment returns a time in UTC for a document, nil for the zero time.
func Moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// isOf reports whether both are for the same claim and time.
func (r *Receipt) isOf(other *Receipt) bool {
	same := func(x, y time.Time) bool { return x.Sub(y).Abs() < time.Millisecond }
	return r.SubAccountName == other.SubAccountName && r.ResourceName == other.ResourceName &&
		r.ResourceID == other.ResourceID && same(r.ChargePeriodStart, other.ChargePeriodStart) &&
		same(r.ChargePeriodEnd, other.ChargePeriodEnd)
}

// ReceiptPod is a pod that used the claim.
type ReceiptPod struct {
	Name string `json:"name"`
	UID  string `json:"uid,omitempty"`
}

// ReceiptDevice is what a claim used of one device.
type ReceiptDevice struct {
	driver.ID
	Model string `json:"model,omitempty"`
	// Attribution is the least certain way in which the device was divided while several claims held
	// it, else exclusive.
	Attribution string         `json:"attribution"`
	Figures     []Figure       `json:"figures"`
	Peaks       []Figure       `json:"peaks,omitempty"`
	Errors      []ReceiptError `json:"errors,omitempty"`
}

// Figure is an amount and its possible error.
type Figure struct {
	Quantity         string            `json:"quantity"`
	Labels           map[string]string `json:"labels,omitempty"`
	ConsumedQuantity float64           `json:"ConsumedQuantity"`
	ConsumedUnit     string            `json:"ConsumedUnit"` // as in the metrics: seconds, joules, bytes
	// ErrorBound is the largest difference between the true amount and ConsumedQuantity, in the same
	// unit, if the device's sensors are exact. Peaks have none: a higher value between two readings is
	// not seen.
	ErrorBound *float64 `json:"errorBound,omitempty"`
	// SensorError describes the sensor's error, which ErrorBound does not include. Absent: unknown.
	SensorError *SensorError `json:"sensorError,omitempty"`
	// MeasuredSeconds is the part of the claim's time in which the device was read often enough, in
	// seconds.
	MeasuredSeconds float64 `json:"measuredSeconds,omitempty"`
	Source          string  `json:"source,omitempty"`
}

// ReceiptError is the number of errors of a kind that hit the claim.
type ReceiptError struct {
	Kind     string  `json:"kind"`
	Code     string  `json:"code,omitempty"`
	Severity string  `json:"severity,omitempty"`
	Count    float64 `json:"count"`
}

// Valid reports whether a receipt from a file is valid.
func (r *Receipt) Valid() bool {
	return r.ID != "" && r.ResourceName != "" && !r.ChargePeriodStart.IsZero() &&
		!r.ChargePeriodEnd.Before(r.ChargePeriodStart)
}

// MaxReceipts limits the receipts that are kept.
const MaxReceipts = 256

// newReceipt returns the receipt of a claim. devices are the charges for each of its devices.
func newReceipt(devices []book.Closed, catalogue driver.Catalogue, number int) *Receipt {
	first := &devices[0]
	out := &Receipt{
		ChargeCategory: "Usage", ResourceType: "ResourceClaim", ResourceName: first.Name, SubAccountName: first.Namespace,
		ResourceID: first.UID, ChargePeriodStart: first.Born.UTC(), Pods: []ReceiptPod{}, Total: []Figure{},
	}
	for i := range devices {
		c := &devices[i]
		if c.Born.Before(out.ChargePeriodStart) {
			out.ChargePeriodStart = c.Born.UTC()
		}
		if c.Ended.After(out.ChargePeriodEnd) {
			out.ChargePeriodEnd = c.Ended.UTC()
		}
		out.Partial = out.Partial || c.Partial
		for _, u := range c.Users {
			if pod := (ReceiptPod{u.Name, u.UID}); !slices.Contains(out.Pods, pod) {
				out.Pods = append(out.Pods, pod)
			}
		}
		device := receiptOf(c, catalogue)
		out.Devices = append(out.Devices, device)
		for _, f := range device.Figures {
			out.Total = plus(out.Total, f)
		}
	}
	slices.SortFunc(out.Pods, func(a, b ReceiptPod) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.UID, b.UID))
	})
	life := book.LifeOf(devices)
	out.Lifecycle = newLifecycle(&life)
	out.ID = newID(out.ChargePeriodEnd, number)
	return out
}

// receiptOf returns the charges for one device.
func receiptOf(c *book.Closed, catalogue driver.Catalogue) ReceiptDevice {
	out := ReceiptDevice{ID: c.Device, Model: c.Model, Attribution: string(c.Attribution)}
	out.Figures = append(out.Figures, Figure{
		Quantity: "allocated_seconds", ConsumedUnit: "seconds", ConsumedQuantity: c.Held, ErrorBound: &c.HeldBound,
	})
	for i := range c.Amounts {
		a := &c.Amounts[i]
		f := newFigure(a.Quantity, a.Labels, a.Value, catalogue)
		f.ErrorBound, f.MeasuredSeconds, f.Source = &a.Bound, a.Measured, a.Origin.String()
		if a.Quantity == driver.Energy {
			f.SensorError = sensorErrorOf(c.Model, a.Origin)
		}
		out.Figures = append(out.Figures, f)
	}
	for i := range c.Witnessed {
		v := &c.Witnessed[i]
		switch v.Quantity {
		case driver.MemoryUsedPeak, driver.PowerPeak:
			out.Peaks = append(out.Peaks, newFigure(v.Quantity, v.Labels, v.Value, catalogue))
		case driver.Errors:
			out.Errors = append(out.Errors, ReceiptError{v.Labels[0], v.Labels[1], v.Labels[2], v.Value})
		case driver.ThrottledSeconds:
			out.Figures = append(out.Figures, newFigure(v.Quantity, v.Labels, v.Value, catalogue))
		}
	}
	return out
}

func newFigure(q driver.Quantity, labels driver.Labels, value float64, catalogue driver.Catalogue) Figure {
	spec := catalogue.Spec(q)
	return Figure{
		Quantity: spec.Name, Labels: LabelsOf(spec, labels), ConsumedQuantity: value, ConsumedUnit: spec.Unit,
	}
}

// LabelsOf returns the values of the labels of a quantity by name, without empty optional ones;
// nil: it has none.
func LabelsOf(spec *driver.Spec, labels driver.Labels) map[string]string {
	var out map[string]string
	for n, l := range spec.Labels {
		if l.Optional && labels[n] == "" {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[l.Name] = labels[n]
	}
	return out
}

// plus adds a figure to a total. Throttled time has no total, since it is of each device.
func plus(total []Figure, f Figure) []Figure {
	if f.ErrorBound == nil {
		return total
	}
	for i := range total {
		t := &total[i]
		if t.Quantity == f.Quantity && maps.Equal(t.Labels, f.Labels) {
			sum := *t.ErrorBound + *f.ErrorBound
			t.ConsumedQuantity += f.ConsumedQuantity
			t.MeasuredSeconds += f.MeasuredSeconds
			t.ErrorBound = &sum
			return total
		}
	}
	f.Source, f.SensorError = "", nil
	return append(total, f)
}

// Figure returns a figure of the total by its quantity, nil if there is none.
func (r *Receipt) Figure(quantity driver.Quantity) *Figure {
	i := slices.IndexFunc(r.Total, func(f Figure) bool { return f.Quantity == quantity.String() })
	if i < 0 {
		return nil
	}
	return &r.Total[i]
}

// SensorError describes the error of a sensor.
type SensorError struct {
	// SampledRatio is the part of the time in which the sensor samples, 0 to 1. Power drawn in the
	// rest is not seen.
	SampledRatio float64 `json:"sampledRatio"`
	// Of is the quantity that the study measured: power, even if the figure comes from the driver's
	// energy counter (see Counter).
	Of string `json:"of"`
	// Counter reports that the figure comes from the driver's energy counter, not from readings of
	// power. Whether the counter has the same error is not documented.
	Counter bool   `json:"counter,omitempty"`
	Source  string `json:"source"` // reference of the study
}

// sensor is a study's result for the GPUs of a model.
type sensor struct {
	model   string // a word in the model's name
	sampled float64
	source  string
}

// sensors returns the known errors of power sensors, by architecture: GA100 and GH100.
func sensors() []sensor {
	const study = "arXiv:2312.02741"
	return []sensor{{"A100", 0.25, study}, {"H100", 0.25, study}}
}

// sensorErrorOf returns the known error of a model's power sensor, nil if unknown.
func sensorErrorOf(model string, origin join.Origin) *SensorError {
	words := strings.FieldsFunc(model, func(r rune) bool { return r == ' ' || r == '-' || r == '_' })
	for _, s := range sensors() {
		if slices.Contains(words, s.model) {
			return &SensorError{
				SampledRatio: s.sampled, Of: "power", Counter: origin.Computed == 0, Source: s.source,
			}
		}
	}
	return nil
}
