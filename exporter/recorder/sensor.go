package recorder

import (
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// SensorError is what is known of how a sensor measures.
type SensorError struct {
	// SampledRatio is the part of the time in which the sensor samples, 0 to 1. What the device draws
	// in the rest of it is not seen.
	SampledRatio float64 `json:"sampledRatio"`
	// Of is what the study measured, power, although the figure may be of the driver's own counter of
	// energy: see Counter.
	Of string `json:"of"`
	// Counter says that the figure is of the driver's counter of energy, and not of readings of power.
	// Whether it sees more than these do is not documented.
	Counter bool   `json:"counter,omitempty"`
	Source  string `json:"source"` // where that is from
}

// sensor is what a study found of the GPUs of a model.
type sensor struct {
	model   string // a word of the name of the model
	sampled float64
	source  string
}

// sensors returns what is known of power sensors, by architecture: GA100 and GH100.
func sensors() []sensor {
	const study = "arXiv:2312.02741"
	return []sensor{{"A100", 0.25, study}, {"H100", 0.25, study}}
}

// sensorErrorOf returns what is known of the power sensor of a model, nil if nothing is.
func sensorErrorOf(model, source string) *SensorError {
	words := strings.FieldsFunc(model, func(r rune) bool { return r == ' ' || r == '-' || r == '_' })
	for _, s := range sensors() {
		if slices.Contains(words, s.model) {
			return &SensorError{
				SampledRatio: s.sampled, Of: "power", Counter: !ledger.Estimated(source), Source: s.source,
			}
		}
	}
	return nil
}
