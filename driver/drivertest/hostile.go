package drivertest

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Wrong is a way in which a source may be wrong about one quantity.
type Wrong struct {
	Name string
	// Value returns what is read in place of the true value at a time, in seconds, while the source is
	// wrong. since is when that began.
	Value func(spec *driver.Spec, truth func(second float64) float64, second, since float64) float64
	// For is for how many readings the source is wrong; 0: to the end.
	For int
	// Back is how far the time of the reading is set back.
	Back time.Duration
	// Twice: a second sample of the device has the value.
	Twice bool
	// Began: a counter, except one of errors, says that it began a moment before it was wrong.
	Began bool
	// Exact: a counter is charged what is true, although it was wrong.
	Exact bool
	// GoesOn: although it is wrong to the end, it counts on.
	GoesOn bool
	// Fast: it counts more than the device can, for so long that only the highest rate is a bound.
	Fast bool
	// Quiet: nothing shows that it is wrong, or it is not.
	Quiet func(spec *driver.Spec) bool
}

// hostileUnits is the first value of the counters of a hostile source, in what they count a second.
const hostileUnits = 1e5

// within reports of which quantities a gauge with the value of hostileGauge can be so much larger.
func within(factor, plus float64) func(*driver.Spec) bool {
	return func(s *driver.Spec) bool {
		v := hostileGauge(s)*factor + plus
		return s.Type == driver.Gauge && (s.Max == 0 || v <= s.Max)
	}
}

type hostileTruth = func(float64) float64

func constant(v float64) func(*driver.Spec, hostileTruth, float64, float64) float64 {
	return func(*driver.Spec, hostileTruth, float64, float64) float64 { return v }
}

func isGauge(s *driver.Spec) bool          { return s.Type == driver.Gauge }
func isGaugeOrFailure(s *driver.Spec) bool { return s.Type == driver.Gauge || s.Failure }
func always(*driver.Spec) bool             { return true }

// zeroIsValue reports whether a gauge that had another value may be 0.
func zeroIsValue(s *driver.Spec) bool {
	return (s.Zero == driver.ZeroIsValue || s.Zero == driver.ZeroNeedsOther) && s.Type == driver.Gauge
}

// Wrongs returns the ways. Codes for "no value" are one each, for each of their widths.
func Wrongs() []Wrong {
	ways := slices.Concat(impossible(), dropouts(), plausible())
	ways = append(ways, Wrong{
		Name: "more than the device can", For: 3, Value: moreThanCan,
		Quiet: func(s *driver.Spec) bool { return s.Name != "power" && s.Name != "energy" && s.Name != "io_bytes" },
	})
	for _, name := range []string{"wrap at 2^32", "wrap at 2^53"} {
		ways = append(ways, Wrong{Name: name, Value: wrapped, Quiet: always})
	}
	codes := HostileCodes()
	for _, name := range slices.Sorted(maps.Keys(codes)) {
		ways = append(ways, Wrong{Name: "code " + name, Value: constant(codes[name]), For: 2})
	}
	return ways
}

// impossible are values that cannot be, and none at all.
func impossible() []Wrong {
	return []Wrong{
		{Name: "NaN", Value: constant(math.NaN()), For: 2},
		{Name: "infinite", Value: constant(math.Inf(1)), For: 2},
		{Name: "minus infinite", Value: constant(math.Inf(-1)), For: 2},
		{Name: "1e300", Value: constant(1e300), For: 2},
		{Name: "-1", Value: constant(-1), For: 2, Quiet: func(s *driver.Spec) bool { return !s.NonNegative }},
		{Name: "0", Value: constant(0), For: 2, Quiet: zeroIsValue},
		{Name: "dropout for 1", Value: constant(0), For: 1, Quiet: zeroIsValue, Exact: true},
		{Name: "dropout for 3", Value: constant(0), For: 3, Quiet: zeroIsValue, Exact: true},
	}
}

// dropouts are counters that fall, and what only looks like a restart.
func dropouts() []Wrong {
	return []Wrong{
		{
			Name: "dropout that counts", For: 3, Quiet: always, Exact: true,
			Value: func(_ *driver.Spec, truth hostileTruth, second, since float64) float64 {
				return truth(second) - truth(since-1)
			},
		},
		{
			Name: "began again, with too much", For: 3, Began: true, Exact: true,
			Quiet: isGaugeOrFailure,
			Value: func(_ *driver.Spec, truth hostileTruth, second, _ float64) float64 { return truth(second) },
		},
		{
			Name: "goes on from a third", GoesOn: true,
			Quiet: isGaugeOrFailure,
			Value: func(s *driver.Spec, truth hostileTruth, second, since float64) float64 {
				if isGaugeOrFailure(s) { // so many errors can have happened after a restart
					return truth(second)
				}
				return truth(second) - truth(since)*2/3
			},
		},
		{
			Name: "three times too fast", Fast: true,
			Quiet: isGaugeOrFailure,
			Value: func(s *driver.Spec, truth hostileTruth, second, since float64) float64 {
				if s.Failure {
					return truth(second)
				}
				return truth(second) + 3*s.MaxRate*(second-since)
			},
		},
		{
			Name: "dropout, not very deep", For: 3, Quiet: isGauge, Exact: true,
			Value: func(_ *driver.Spec, truth hostileTruth, _, since float64) float64 { return truth(since) / 3 },
		},
	}
}

// plausible are values that could be those of another device, unit or time.
func plausible() []Wrong {
	return []Wrong{
		{
			Name: "restart", Quiet: always,
			Value: func(_ *driver.Spec, truth hostileTruth, second, since float64) float64 {
				return truth(second) - truth(since)
			},
		},
		{
			Name: "stuck", For: 3, Quiet: always,
			Value: func(_ *driver.Spec, truth hostileTruth, _, since float64) float64 { return truth(since - 1) },
		},
		{
			Name: "jump by 10^6", For: 3,
			Quiet: func(s *driver.Spec) bool { return s.Type == driver.Counter && s.MaxRate > 1e5 || within(1, 1e6)(s) },
			Value: func(_ *driver.Spec, truth hostileTruth, second, _ float64) float64 { return truth(second) + 1e6 },
		},
		{
			Name: "unit off by 10^3", For: 3,
			Quiet: func(s *driver.Spec) bool { return s.Type == driver.Counter && s.MaxRate > 1e8 || within(1e3, 0)(s) },
			Value: func(_ *driver.Spec, truth hostileTruth, second, _ float64) float64 { return truth(second) * 1e3 },
		},
		{
			Name: "unit off by 10^-3", For: 3, Quiet: isGauge,
			Value: func(_ *driver.Spec, truth hostileTruth, second, _ float64) float64 { return truth(second) / 1e3 },
		},
		{
			Name: "time backwards", For: 2, Back: time.Minute,
			Value: func(_ *driver.Spec, truth hostileTruth, second, _ float64) float64 { return truth(second) },
		},
		{
			Name: "doubled device", For: 2, Twice: true,
			Value: func(_ *driver.Spec, truth hostileTruth, second, _ float64) float64 { return truth(second) },
		},
	}
}

// moreThanCan is a value that some device may have, but not this one.
func moreThanCan(s *driver.Spec, truth func(second float64) float64, second, _ float64) float64 {
	switch {
	case s.Name == "power":
		return 2 * hostileWatts
	case s.Type == driver.Gauge || s.Failure: // so many errors can happen
		return truth(second)
	default:
		return truth(second) + s.MaxRate
	}
}

// hostileWatts is the power limit of the device, and the others are those of its link.
const (
	hostileWatts      = 300
	hostileLanes      = 16
	hostileGeneration = 5
)

// wrapped is the value of a counter that wraps.
func wrapped(s *driver.Spec, truth func(second float64) float64, second, since float64) float64 {
	if s.Type == driver.Gauge {
		return truth(second)
	}
	return truth(second) - truth(since-0.5)
}

// HostileCodes returns numbers by which interfaces say that there is no value, as their own headers
// write them.
func HostileCodes() map[string]float64 {
	return map[string]float64{
		"DCGM_INT32_BLANK": 0x7ffffff0, "DCGM_INT32_NOT_PERMISSIONED": 0x7ffffff3, "0x7ffffffe": 0x7ffffffe,
		"DCGM_INT64_BLANK": 0x7ffffffffffffff0, "0x7ffffffffffffffe": 0x7ffffffffffffffe,
		"DCGM_FP64_BLANK": 140737488355328, "DCGM_FP64_NOT_PERMISSIONED": 140737488355331,
		"NVML_VALUE_NOT_AVAILABLE": math.MaxUint32, "all bits of 64": math.MaxUint64,
	}
}

// Hostile is a source of one device with each quantity that a source can report. It is wrong about
// one quantity, in one way.
type Hostile struct {
	Quantity driver.Quantity
	Wrong    Wrong
	// From is the number of the Sample, from 0, at which it begins to be wrong.
	From int
	// Rate is what the counters count a second, as a part of the most that a device can count.
	Rate float64
	Now  func() time.Time

	start   time.Time
	samples int
}

// HostileUUID is the UUID of the device.
const HostileUUID = "GPU-hostile"

// Name implements [driver.Source].
func (h *Hostile) Name() string { return "hostile" }

// Sample implements [driver.Source].
func (h *Hostile) Sample(context.Context) ([]driver.Sample, error) {
	now := h.Now()
	if h.start.IsZero() {
		h.start = now
	}
	second, from := now.Sub(h.start).Seconds(), float64(h.From)
	wrong := h.samples >= h.From && (h.Wrong.For == 0 || h.samples < h.From+h.Wrong.For)
	h.samples++
	s := driver.Sample{Hardware: driver.Hardware{UUID: HostileUUID}}
	for q, spec := range driver.Standard() {
		if spec.Derived || spec.Internal {
			continue
		}
		truth := func(second float64) float64 { return h.Truth(&spec, second) }
		r := driver.Reading{Quantity: driver.Quantity(q), Value: truth(second), At: now, Labels: hostileLabels(&spec)}
		if wrong && r.Quantity == h.Quantity {
			r.Value = h.Wrong.Value(&spec, truth, second, from)
			r.At = now.Add(-h.Wrong.Back)
			if h.Wrong.Began && spec.Type == driver.Counter && !spec.Failure {
				r.Since = h.start.Add(time.Duration(from*float64(time.Second)) - time.Second/2)
			}
		}
		s.Readings = append(s.Readings, r)
	}
	if wrong && h.Wrong.Twice {
		return []driver.Sample{s, s}, nil
	}
	return []driver.Sample{s}, nil
}

func hostileLabels(spec *driver.Spec) (out driver.Labels) {
	for i, l := range spec.Labels {
		if out[i] = "x"; l.Values != nil {
			out[i] = l.Values[0]
		}
	}
	return out
}

// Truth is the true value of a quantity, in seconds since the first sample. Failures do not happen.
func (h *Hostile) Truth(spec *driver.Spec, second float64) float64 {
	switch {
	case spec.Type == driver.Gauge:
		return hostileGauge(spec)
	case spec.Failure:
		return hostileUnits
	default:
		return h.Most(spec) * h.Rate * (hostileUnits + second)
	}
}

// Most is the highest rate of a counter per second, by the limits of the device if it has them. For
// a short time it may be exceeded by half.
func (h *Hostile) Most(spec *driver.Spec) float64 {
	switch spec.Name {
	case "energy":
		return hostileWatts * 1.5
	case "io_bytes":
		return driver.LinkBytesPerSecond("pcie", hostileGeneration, hostileLanes) * 1.5
	default:
		return spec.MaxRate
	}
}

// hostileGauge is the value of a gauge: one that its quantity can have, and that is not 0.
func hostileGauge(spec *driver.Spec) float64 {
	switch {
	case spec.Name == "power_limit":
		return hostileWatts
	case spec.Link == driver.LinkHasLanes:
		return hostileLanes
	case spec.Link == driver.LinkHasGeneration:
		return hostileGeneration
	}
	switch spec.Unit {
	case "ratio":
		return 0.5
	case "bytes", "hertz":
		return 1e9
	case "watts":
		return 52
	case "celsius":
		return 40
	default:
		return 1
	}
}
