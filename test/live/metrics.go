package live

import (
	"bytes"
	"fmt"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Metrics are the families of an exposition, by name.
type Metrics map[string]*dto.MetricFamily

// ParseMetrics parses the text format.
func ParseMetrics(exposition []byte) (Metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(exposition))
	if err != nil {
		return nil, fmt.Errorf("parse the exposition: %w", err)
	}
	return families, nil
}

// Rows returns the metrics of a family that have these labels, given as alternating names and
// values.
func (m Metrics) Rows(name string, labels ...string) []*dto.Metric {
	return slices.DeleteFunc(slices.Clone(m[name].GetMetric()), func(row *dto.Metric) bool {
		for i := 0; i+1 < len(labels); i += 2 {
			if !slices.ContainsFunc(row.GetLabel(), func(l *dto.LabelPair) bool {
				return l.GetName() == labels[i] && l.GetValue() == labels[i+1]
			}) {
				return true
			}
		}
		return false
	})
}

// ValueOf returns the value of a counter, a gauge, or a metric without a type.
func ValueOf(row *dto.Metric) float64 {
	return row.GetCounter().GetValue() + row.GetGauge().GetValue() + row.GetUntyped().GetValue() // two of them are nil
}
