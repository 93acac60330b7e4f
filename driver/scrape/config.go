package scrape

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v2"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// The defaults and bounds of a configuration.
const (
	defaultInterval = model.Duration(5 * time.Second)
	defaultTimeout  = model.Duration(5 * time.Second) // or the interval if that is shorter
	defaultRefresh  = model.Duration(time.Minute)
	minInterval     = model.Duration(time.Second)
	maxConfigBytes  = 1 << 20 // a file that somebody named by mistake may have no end
)

// Config is a valid configuration.
type Config struct {
	Endpoints []Endpoint `yaml:"endpoints"`
}

// Endpoint is the configuration of one exporter to scrape, including the defaults of its preset.
type Endpoint struct {
	Name     string         `yaml:"name"`
	URL      string         `yaml:"url"`
	Preset   string         `yaml:"preset"`
	Interval model.Duration `yaml:"interval"`
	Timeout  model.Duration `yaml:"timeout"`
	// Refresh is the period at which the exporter updates its values; 0: for each scrape.
	Refresh   model.Duration          `yaml:"refresh"`
	Driver    string                  `yaml:"driver"` // DRA driver of the devices; "": any driver
	Match     Match                   `yaml:"match"`
	Partition Partition               `yaml:"partition"`
	Metrics   []Metric                `yaml:"metrics"` // the first of several metrics for one reading has precedence
	Client    config.HTTPClientConfig `yaml:",inline"`

	endpoints int // number of endpoints in the configuration
}

// Partition selects the series of partitions whose Match identifies the parent: those whose Label
// is neither empty nor one of Whole, which are case-insensitive. Such series are rejected, unless
// their metric has a Partition. Number is the label with the partition's number; it is supported
// only for AMD GPUs that Match identifies by serial number.
type Partition struct {
	Label  string   `yaml:"label"`
	Whole  []string `yaml:"whole,omitempty"`
	Number string   `yaml:"number,omitempty"`
}

// Values of Metric.Partition.
const (
	partitionOwn    = "own"
	partitionParent = "parent"
)

// Metric maps the series of a metric to a quantity.
type Metric struct {
	Name     string            `yaml:"name"`
	Quantity string            `yaml:"quantity"`
	Scale    *float64          `yaml:"scale,omitempty"` // factor to the quantity's unit; nil: 1
	Match    *Match            `yaml:"match,omitempty"` // nil: the endpoint's
	Where    map[string]string `yaml:"where,omitempty"` // only the series with these labels
	// Combine defines the value of a gauge that has several series for the same reading, such as one
	// per core: "max" of the series, or "sum" of them and of those of other metrics with the same
	// reading. Empty: the first series, and the others are rejected as duplicates.
	Combine string `yaml:"combine,omitempty"`
	// Needs is the name of another metric of the same sum. There is no reading if that metric is
	// absent, since the sum would be incomplete.
	Needs string `yaml:"needs,omitempty"`
	// Partition defines what the series of partitions measure: "own" the partition, whose number
	// within its parent is the value of Partition.Label; "parent" the parent, with the same value for
	// all of its partitions. Empty: they are rejected. If Partition.Number is set, "parent" applies
	// only to partition 0 and "own" only to the others.
	Partition string            `yaml:"partition,omitempty"`
	Labels    map[string]string `yaml:"labels,omitempty"`
	// LabelsFrom maps labels of the quantity to labels of the series, whose values they get.
	LabelsFrom map[string]string `yaml:"labels_from,omitempty"`
}

// Load reads a configuration file.
func Load(path string) (*Config, error) {
	data, err := sysfs.ReadFile(path, maxConfigBytes)
	if err != nil {
		return nil, fmt.Errorf("read scrape configuration: %w", err)
	}
	c, err := ParseConfig(data, filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("scrape configuration %s: %w", path, err)
	}
	return c, nil
}

// ParseConfig parses and validates a configuration. Relative paths in it are relative to dir; no
// file is read. The error is one line that names the endpoint and the field.
func ParseConfig(data []byte, dir string) (*Config, error) {
	// The HTTP client settings need yaml/v2: their types implement its interfaces.
	c := &Config{}
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return nil, errors.New(flatten(err.Error()))
	}
	if len(c.Endpoints) == 0 {
		return nil, errors.New("endpoints: missing")
	}
	seen := map[string]bool{}
	for i := range c.Endpoints {
		e := &c.Endpoints[i]
		e.Timeout = cmp.Or(e.Timeout, min(e.Interval, defaultTimeout))
		e.Client.SetDirectory(dir)
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("endpoint %d, %.64q: %w", i+1, e.Name, err)
		}
		if seen[e.Name] {
			return nil, fmt.Errorf("endpoint %d, %q: name: duplicate", i+1, e.Name)
		}
		seen[e.Name], e.endpoints = true, len(c.Endpoints)
	}
	return c, nil
}

// UnmarshalYAML sets the fields of the preset before those that the file has. The endpoint's own
// metrics come before those of the preset and replace those with the same name.
func (e *Endpoint) UnmarshalYAML(unmarshal func(any) error) error {
	var file struct {
		Preset string         `yaml:"preset"`
		Fields map[string]any `yaml:",inline"`
	}
	if err := unmarshal(&file); err != nil {
		return err
	}
	*e = Endpoint{Interval: defaultInterval, Refresh: defaultRefresh}
	if file.Preset != "" {
		text, err := presets.ReadFile("presets/" + file.Preset + ".yaml")
		if err != nil {
			return fmt.Errorf("preset: %.64q is not one of %s", file.Preset, strings.Join(presetNames(), ", "))
		}
		if err := yaml.UnmarshalStrict(text, e); err != nil {
			return fmt.Errorf("preset: %s: %w", file.Preset, err)
		}
	}
	if file.Fields["match"] != nil {
		e.Match = Match{}
	}
	if file.Fields["partition"] != nil {
		e.Partition = Partition{}
	}
	preset := e.Metrics
	e.Metrics = nil
	type plain Endpoint
	if err := unmarshal((*plain)(e)); err != nil {
		return err
	}
	own := e.Metrics
	for _, m := range preset {
		if !slices.ContainsFunc(own, func(o Metric) bool { return o.Name == m.Name }) {
			e.Metrics = append(e.Metrics, m)
		}
	}
	return nil
}

// flatten returns a text as one line.
func flatten(s string) string { return strings.Join(strings.Fields(s), " ") }

// check returns the first error in the endpoint.
func (e *Endpoint) check() error {
	if !regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`).MatchString(e.Name) {
		return fmt.Errorf("name: %.64q is not 1 to 63 letters, digits, dots, dashes and underscores", e.Name)
	}
	if err := checkURL(e.URL); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if e.Interval < minInterval {
		return fmt.Errorf("interval: %v is shorter than %v", e.Interval, minInterval)
	}
	if e.Timeout <= 0 || e.Timeout > e.Interval {
		return fmt.Errorf("timeout: %v is not above 0 and within the interval, %v", e.Timeout, e.Interval)
	}
	if err := e.checkMatch(); err != nil {
		return err
	}
	if err := e.Client.Validate(); err != nil {
		return fmt.Errorf("client settings: %s", flatten(err.Error()))
	}
	return e.checkMetrics()
}

func checkURL(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return errors.New(flatten(err.Error()))
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return fmt.Errorf("%.64q is not an http or https URL", raw)
	case u.User != nil:
		return errors.New("a user or password belongs in basic_auth")
	}
	return nil
}

func (e *Endpoint) checkMatch() error {
	if err := e.Match.check(e.Driver); err != nil {
		return fmt.Errorf("match: %w", err)
	}
	switch p := e.Partition; {
	case p.Label == "" && (len(p.Whole) > 0 || p.Number != ""):
		return errors.New("partition: label: missing")
	case p.Number != "" && e.Match.Hardware != MatchSerial:
		return errors.New("partition: number: only with match: hardware: serial")
	}
	return nil
}

func (e *Endpoint) checkMetrics() error {
	if len(e.Metrics) == 0 {
		return errors.New("metrics: missing")
	}
	for i, m := range e.Metrics {
		_, err := m.rule(i)
		if err == nil && m.Match != nil {
			if err = m.Match.check(e.Driver); err != nil {
				err = fmt.Errorf("match: %w", err)
			}
		}
		if err != nil {
			return fmt.Errorf("metrics: %s: %w", cmp.Or(fmt.Sprintf("%.128s", flatten(m.Name)), fmt.Sprint(i+1)), err)
		}
	}
	return nil
}

// rule validates the metric and returns its rule.
func (m Metric) rule(rank int) (rule, error) {
	if m.Name == "" {
		return rule{}, errors.New("name: missing")
	}
	quantity, ok := driver.Standard().Named(m.Quantity)
	if spec := quantity.Spec(); !ok || spec.Internal {
		return rule{}, fmt.Errorf("quantity: unknown quantity %.64q", m.Quantity)
	}
	r := rule{
		rank: rank, quantity: quantity, spec: quantity.Spec(), scale: 1, where: m.Where,
		partition: m.Partition, name: m.Name, needs: m.Needs,
	}
	if m.Scale != nil {
		r.scale = *m.Scale
	}
	if math.IsNaN(r.scale) || math.IsInf(r.scale, 0) || r.scale <= 0 {
		return rule{}, fmt.Errorf("scale: %v is not above 0 and finite", r.scale)
	}
	switch m.Combine {
	case combineMax:
		r.combine = maximum
	case combineSum:
		r.combine = sum
	}
	switch {
	case !slices.Contains([]string{"", partitionOwn, partitionParent}, m.Partition):
		return rule{}, fmt.Errorf("partition: %.64q is neither own nor parent", m.Partition)
	case m.Needs != "" && r.combine != sum:
		return rule{}, errors.New("needs: only with combine: sum")
	case m.Combine != "" && r.combine == notCombined:
		return rule{}, fmt.Errorf("combine: %.64q is neither max nor sum", m.Combine)
	case m.Combine != "" && r.spec.Type == driver.Counter:
		return rule{}, fmt.Errorf("combine: %v is a counter, whose sum would fall when a series disappears", r.quantity)
	}
	err := m.addLabels(&r)
	return r, err
}

// addLabels sets the source of each label of the quantity. A label with a closed list of values
// must have one; others may be empty.
func (m Metric) addLabels(r *rule) error {
	for field, given := range map[string]map[string]string{"labels": m.Labels, "labels_from": m.LabelsFrom} {
		for name := range given {
			if !slices.ContainsFunc(r.spec.Labels, func(l driver.Label) bool { return l.Name == name }) {
				return fmt.Errorf("%s: %v has no label %.64q", field, r.quantity, name)
			}
		}
	}
	for i, l := range r.spec.Labels {
		constant, isConstant := m.Labels[l.Name]
		from, isFrom := m.LabelsFrom[l.Name]
		switch {
		case isConstant && isFrom:
			return fmt.Errorf("labels_from: %s is also in labels", l.Name)
		case !isConstant && !isFrom && !l.Accepts(""):
			return fmt.Errorf("labels: %v needs %s, one of %s", r.quantity, l.Name, strings.Join(l.Values, ", "))
		case isConstant && !l.Accepts(constant):
			return fmt.Errorf("labels: %s: %.64q is not one of %s", l.Name, constant, strings.Join(l.Values, ", "))
		case len(constant) > maxLabelValue:
			return fmt.Errorf("labels: %s: longer than %d bytes", l.Name, maxLabelValue)
		}
		r.constant[i], r.from[i] = constant, from
	}
	return nil
}

// presets are the configurations of known exporters, in the format of a configuration file.
//
//go:embed presets
var presets embed.FS

// presetNames returns the names of the presets.
func presetNames() []string {
	entries, _ := presets.ReadDir("presets") // it is in the program
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// Bounds of the responses of all endpoints together. For comparison: 64 GPUs with 60 metrics have 4
// 000 series; node_exporter has 8 series per network interface.
const (
	allSeries = 1 << 15 // mapped series
	allText   = 1 << 20 // bytes of their label values
)

// minShares is the minimum number of parts into which the bounds are divided among endpoints.
const minShares = 2

// bounds has the bounds of one response. What exceeds them is rejected and counted.
type bounds struct{ series, text int }

// bounds returns the bounds of the endpoint: an equal part of the bounds of all endpoints.
func (e *Endpoint) bounds() bounds {
	n := max(e.endpoints, minShares)
	return bounds{series: allSeries / n, text: allText / n}
}
