package exportertest

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TB is a *testing.T or a *rapid.T.
type TB interface {
	must.TB
	Errorf(format string, args ...any)
}

// Scraped is a parsed scrape: the value of each series by family and sorted labels. The value of a
// histogram is its count.
type Scraped map[string]map[string]float64

// Render returns the renderer of one snapshot.
func Render(s *exposition.Snapshot, c exposition.Config) *exposition.Renderer {
	return exposition.New(prometheus.NewRegistry(), func() *exposition.Snapshot { return s }, c)
}

// Unix returns seconds since 1970.
func Unix(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// Classic returns the options for classic buckets and for all sources of quantities. With them, the
// text formats have all series.
func Classic() exposition.Choices {
	out := Everything()
	out[exposition.GroupHistograms] = exposition.Classic
	return out
}

// Everything returns the options for the families and series that are off by default.
func Everything() exposition.Choices {
	return exposition.Choices{exposition.GroupQuantitySource: exposition.On, exposition.GroupDetails: exposition.On}
}

// Text returns the scrape in the text format, with the classic buckets of histograms.
func Text(t TB, s *exposition.Snapshot) string {
	t.Helper()
	return Encode(t, Render(s, exposition.Config{Choices: Classic()}), expfmt.NewFormat(expfmt.TypeTextPlain))
}

// Encode returns the scrape in a format.
func Encode(t TB, e *exposition.Renderer, format expfmt.Format) string {
	t.Helper()
	var b bytes.Buffer
	_, err := e.Write(&b, format)
	must.That(t, err == nil, "write: %v", err)
	return b.String()
}

// Decode returns the families of an answer in protobuf.
func Decode(t TB, e *exposition.Renderer) []*dto.MetricFamily {
	t.Helper()
	in := expfmt.NewDecoder(
		strings.NewReader(Encode(t, e, expfmt.NewFormat(expfmt.TypeProtoDelim))), expfmt.NewFormat(expfmt.TypeProtoDelim),
	)
	var out []*dto.MetricFamily
	for {
		f := &dto.MetricFamily{}
		switch err := in.Decode(f); {
		case errors.Is(err, io.EOF):
			return out
		case err != nil:
			t.Fatalf("decode: %v", err)
		}
		out = append(out, f)
	}
}

// Scrape writes a snapshot's metrics as text, parses the text, and checks what Prometheus requires:
// families are in order, each appears once and matches the catalogue; series are unique; the text
// is UTF-8.
func Scrape(t TB, s *exposition.Snapshot) Scraped {
	t.Helper()
	return read(t, Text(t, s))
}

// read reads an answer in the text format.
func read(t TB, written string) Scraped {
	t.Helper()
	must.That(t, utf8.ValidString(written), "the answer is no UTF-8")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(written))
	must.That(t, err == nil, "parse: %v", err)
	described := DescribedFamilies()
	out := Scraped{}
	for name, f := range families {
		out[name] = map[string]float64{}
		desc, ok := described[name]
		must.That(t, ok, "%s is no known family", name)
		want := strings.ToUpper(desc.Type.String())
		if desc.Histogram {
			want = dto.MetricType_HISTOGRAM.String()
		}
		must.That(t, f.GetType().String() == want, "%s is a %v, not a %s", name, f.GetType(), want)
		for _, m := range f.Metric {
			key := labelKey(t, &desc, m)
			_, twice := out[name][key]
			must.That(t, !twice, "%s{%s} is there twice", name, key)
			count := float64(m.GetHistogram().GetSampleCount())
			out[name][key] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + count
		}
	}
	return out
}

// DescribedFamilies returns the families of snapshots by name.
func DescribedFamilies() map[string]exposition.Family {
	out := map[string]exposition.Family{}
	for _, f := range exposition.Families(driver.Standard()) {
		out[f.Name] = f
	}
	return out
}

// labelKey returns the labels of a series as name="value" in order, and checks that their names are
// those of the family.
func labelKey(t TB, f *exposition.Family, m *dto.Metric) string {
	t.Helper()
	var names, parts []string
	for _, l := range m.Label {
		if !chosen(l.GetName()) {
			names = append(names, l.GetName())
		}
		parts = append(parts, l.GetName()+"="+strconv.Quote(l.GetValue()))
	}
	want := slices.DeleteFunc(slices.Clone(f.Labels), func(name string) bool {
		return f.Spec != nil && !slices.Contains(names, name) &&
			slices.ContainsFunc(f.Spec.Labels, func(l driver.Label) bool { return l.Name == name && l.Optional })
	})
	must.That(t, slices.Equal(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(want))),
		"%s has the labels %q, not %q", f.Name, names, want)
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// chosen reports whether a label exists because of a flag, such as --pod-label.
func chosen(label string) bool {
	return strings.HasPrefix(label, "label_") || strings.HasPrefix(label, "annotation_")
}

// Series returns the number of series that count for --max-series.
func (x Scraped) Series() int {
	n, described := 0, DescribedFamilies()
	for name, rows := range x {
		if f := described[name]; !strings.HasPrefix(name, "dra_exporter_") {
			n += len(rows) * f.Series(false)
		}
	}
	return n
}

// Matching returns the series of a family that have all the given labels, as name=value.
func (x Scraped) Matching(family string, labels ...string) map[string]float64 {
	out := maps.Clone(x[family])
	maps.DeleteFunc(out, func(key string, _ float64) bool {
		return slices.ContainsFunc(labels, func(l string) bool {
			name, value, _ := strings.Cut(l, "=")
			return !strings.Contains(","+key+",", ","+name+"="+strconv.Quote(value)+",")
		})
	})
	return out
}

// One returns the value of the one series of a family with the given labels.
func (x Scraped) One(t TB, family string, labels ...string) float64 {
	t.Helper()
	rows := x.Matching(family, labels...)
	must.That(t, len(rows) == 1, "%s%q: got the series %v, want one", family, labels, rows)
	for _, v := range rows {
		return v
	}
	return 0
}

// ParseKey returns the labels of a key of [Scraped].
func ParseKey(key string) map[string]string {
	out := map[string]string{}
	for key != "" {
		name, rest, _ := strings.Cut(key, "=")
		quoted := rest[:quotedLen(rest)]
		out[name], _ = strconv.Unquote(quoted)
		key = strings.TrimPrefix(rest[len(quoted):], ",")
	}
	return out
}

func quotedLen(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(s)
}

// Lint checks the families' names and help texts with promlint.
func Lint(t *testing.T, s *exposition.Snapshot) {
	t.Helper()
	problems, err := promlint.NewWithMetricFamilies(Decode(t, Render(s, exposition.Config{}))).Lint()
	must.Do(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// HolderOf splits the name of a family into its metric and its holder: device, claim, pod or
// device_unattributed.
func HolderOf(family string) (metric, who string) {
	for _, prefix := range []string{"dra_device_unattributed_", "dra_device_", "dra_claim_", "dra_pod_"} {
		if rest, ok := strings.CutPrefix(family, prefix); ok {
			return rest, strings.TrimSuffix(strings.TrimPrefix(prefix, "dra_"), "_")
		}
	}
	return "", ""
}

// Attributed reports whether a metric is divided among claims and pods.
func Attributed(metric string) bool {
	switch metric {
	case "utilization_ratio", "active_seconds_total", "memory_used_bytes", "power_watts", "energy_joules_total",
		"io_bytes_total",
		"allocated_seconds_total", "allocated_share_seconds_total":
		return true
	default:
		return false
	}
}

// SumOf returns the sum of the values, in the order of their keys.
func SumOf(m map[string]float64) float64 {
	sum := 0.0
	for _, k := range slices.Sorted(maps.Keys(m)) {
		sum += m[k]
	}
	return sum
}
