package recorder

import (
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/join"
)

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
