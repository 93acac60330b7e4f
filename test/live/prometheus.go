package live

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// Prometheus is a Prometheus that a test has started.
type Prometheus struct {
	url    string
	client *http.Client
}

// PrometheusOptions are the options of [StartPrometheus].
type PrometheusOptions struct {
	Config string            // its configuration
	Files  map[string]string // files next to the configuration by name, such as rules
	Flags  []string

	// If it runs in another network namespace: how to run a program there, and how to reach Address
	// from the test.
	Command func(ctx context.Context, name string, args ...string) *exec.Cmd
	Client  *http.Client
	Address string
}

// StartPrometheus starts the program $PROMETHEUS and waits until it is ready. It runs until the
// test ends.
func StartPrometheus(t testing.TB, o PrometheusOptions) Prometheus {
	program := os.Getenv("PROMETHEUS")
	must.That(t, program != "", "PROMETHEUS is not set: run this with make")
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	must.Do(t, os.WriteFile(config, []byte(o.Config), 0o600))
	for name, content := range o.Files {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	if o.Command == nil {
		o.Command, o.Client, o.Address = exec.CommandContext, http.DefaultClient, FreeAddress(t)
	}
	p := Prometheus{url: "http://" + o.Address, client: o.Client}
	args := append([]string{
		"--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + o.Address,
		"--log.level=warn",
	}, o.Flags...)
	Start(t, o.Command(context.WithoutCancel(t.Context()), program, args...), o.Client, p.url+"/-/ready")
	return p
}

// At returns a server with Prometheus's API that already runs at an address.
func At(address string) Prometheus { return Prometheus{url: address, client: http.DefaultClient} }

// Sample is a value at a time.
type Sample struct {
	At    time.Time
	Value float64
}

// Series is a series of a result, with its samples in order.
type Series struct {
	Labels     map[string]string
	Samples    []Sample
	Histograms []Histogram // the samples that are native histograms
}

// Query evaluates an expression at a time. A range selector gives the raw samples.
func (p Prometheus) Query(ctx context.Context, expression string, at time.Time) ([]Series, error) {
	return p.series(ctx, "/api/v1/query", url.Values{"query": {expression}, "time": {unixText(at)}})
}

// QueryRange evaluates an expression over a range of time.
func (p Prometheus) QueryRange(ctx context.Context, expression string, from, to time.Time,
	step time.Duration,
) ([]Series, error) {
	return p.series(ctx, "/api/v1/query_range", url.Values{
		"query": {expression}, "start": {unixText(from)}, "end": {unixText(to)}, "step": {step.String()},
	})
}

func unixText(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1e3, 'f', 3, 64) }

func (p Prometheus) series(ctx context.Context, path string, parameters url.Values) ([]Series, error) {
	var data struct {
		Result []struct {
			Metric     map[string]string
			Value      *[2]any
			Values     [][2]any
			Histogram  *Histogram
			Histograms []Histogram
		}
	}
	if err := p.Get(ctx, path, parameters, &data); err != nil {
		return nil, fmt.Errorf("query %s: %w", parameters.Get("query"), err)
	}
	var out []Series
	for _, r := range data.Result {
		s := Series{Labels: r.Metric}
		if r.Value != nil {
			r.Values = append(r.Values, *r.Value)
		}
		for _, v := range r.Values {
			sample, err := decodeSample(v)
			if err != nil {
				return nil, fmt.Errorf("query %s: %w", parameters.Get("query"), err)
			}
			s.Samples = append(s.Samples, sample)
		}
		if s.Histograms = r.Histograms; r.Histogram != nil {
			s.Histograms = append(s.Histograms, *r.Histogram)
		}
		out = append(out, s)
	}
	return out, nil
}

// decodeSample decodes [seconds, "value"].
func decodeSample(v [2]any) (Sample, error) {
	at, isNumber := v[0].(float64)
	text, isText := v[1].(string)
	if !isNumber || !isText {
		return Sample{}, fmt.Errorf("%v is not a sample", v)
	}
	value, err := strconv.ParseFloat(text, 64)
	return Sample{At: time.UnixMilli(int64(at * 1e3)), Value: value}, err
}

// Get sends a request to Prometheus's API and decodes the data of the response.
func (p Prometheus) Get(ctx context.Context, path string, parameters url.Values, data any) error {
	body := struct {
		Status, Error string
		Data          any
	}{Data: data}
	a, err := Ask(ctx, p.client, p.url+path+"?"+parameters.Encode()) // the status of an error is not 200
	if err == nil {
		err = json.Unmarshal(a.Body, &body)
	}
	if err != nil {
		return err
	}
	if body.Status != "success" {
		return fmt.Errorf("%s: %s", body.Status, body.Error)
	}
	return nil
}

// Histogram is a native histogram at a time.
type Histogram struct {
	At         time.Time
	Count, Sum float64
	Buckets    []Bucket // non-empty ones, in order
}

// Bucket counts the values between its bounds.
type Bucket struct{ Lower, Upper, Count float64 }

// UnmarshalJSON implements [json.Unmarshaler]. The form is [seconds, {"count", "sum", "buckets"}],
// with a bucket as [inclusive bounds, lower, upper, count], and numbers as strings
// (https://prometheus.io/docs/prometheus/latest/querying/api/#native-histograms).
func (h *Histogram) UnmarshalJSON(data []byte) error {
	var seconds float64
	var of struct {
		Count, Sum number
		Buckets    [][4]any
	}
	if err := json.Unmarshal(data, &[2]any{&seconds, &of}); err != nil {
		return err
	}
	*h = Histogram{At: time.UnixMilli(int64(seconds * 1e3)), Count: float64(of.Count), Sum: float64(of.Sum)}
	for _, fields := range of.Buckets {
		var numbers [3]float64
		for i := range numbers {
			text, _ := fields[i+1].(string)
			var err error
			if numbers[i], err = strconv.ParseFloat(text, 64); err != nil {
				return fmt.Errorf("bucket %v: %w", fields, err)
			}
		}
		h.Buckets = append(h.Buckets, Bucket{numbers[0], numbers[1], numbers[2]})
	}
	return nil
}

// number is a number that is written as a string.
type number float64

// UnmarshalJSON implements [json.Unmarshaler].
func (n *number) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	v, err := strconv.ParseFloat(text, 64)
	*n = number(v)
	return err
}

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
