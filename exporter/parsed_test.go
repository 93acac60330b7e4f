package exporter

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/dra-exporter/dra-exporter/driver"
)

// failer is a *testing.T or a *rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

// exposition is a scrape, parsed again: the value of each series by family and sorted labels.
type exposition map[string]map[string]float64

// theExposition's families are made once: the property tests scrape many thousand times.
var theExposition = sync.OnceValue(func() *Exposition { return NewExposition(prometheus.NewRegistry(), nil, ExpositionConfig{}) })

// expose returns the Exposition of one snapshot.
func expose(s *Snapshot, c ExpositionConfig) *Exposition {
	e := theExposition()
	return &Exposition{registry: e.registry, latest: func() *Snapshot { return s }, config: c, families: e.families, order: e.order}
}

// text returns the scrape in the text format.
func text(t failer, s *Snapshot) string {
	t.Helper()
	return encode(t, expose(s, ExpositionConfig{}), expfmt.NewFormat(expfmt.TypeTextPlain))
}

func encode(t failer, e *Exposition, format expfmt.Format) string {
	t.Helper()
	var b bytes.Buffer
	if err := e.Write(&b, format, nil); err != nil {
		t.Fatalf("write: %v", err)
	}
	return b.String()
}

// decode returns the families of an answer in protobuf.
func decode(t failer, e *Exposition) []*dto.MetricFamily {
	t.Helper()
	in := expfmt.NewDecoder(strings.NewReader(encode(t, e, expfmt.NewFormat(expfmt.TypeProtoDelim))), expfmt.NewFormat(expfmt.TypeProtoDelim))
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

// scrape gathers a snapshot's metrics, writes them as text, reads them again and holds them to what Prometheus asks of
// an answer: families in order, each once and as the catalogue says; series unique; UTF-8.
func scrape(t failer, s *Snapshot) exposition {
	t.Helper()
	written := text(t, s)
	if !utf8.ValidString(written) {
		t.Fatalf("the answer is no UTF-8")
	}
	if n := strings.Count(written, "# TYPE "); n != len(slices.Compact(typeLines(written))) {
		t.Fatalf("a family is there twice")
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(written))
	if err != nil {
		t.Fatalf("parse: %v", err)
	}
	described := describedFamilies()
	out := exposition{}
	for name, f := range families {
		out[name] = map[string]float64{}
		desc, ok := described[name]
		if !ok {
			t.Fatalf("%s is no known family", name)
		}
		if want := strings.ToUpper(desc.Type.String()); f.GetType().String() != want {
			t.Fatalf("%s is a %v, not a %s", name, f.GetType(), want)
		}
		for _, m := range f.Metric {
			key := labelKey(t, &desc, m)
			if _, twice := out[name][key]; twice {
				t.Fatalf("%s{%s} is there twice", name, key)
			}
			out[name][key] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

func typeLines(written string) []string {
	var out []string
	for line := range strings.Lines(written) {
		if strings.HasPrefix(line, "# TYPE ") {
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return out
}

var describedFamilies = sync.OnceValue(func() map[string]Family {
	out := map[string]Family{}
	for _, f := range Families() {
		out[f.Name] = f
	}
	return out
})

// labelKey returns the labels of a series as name="value" in order, and holds their names to the family's.
func labelKey(t failer, f *Family, m *dto.Metric) string {
	t.Helper()
	var names, parts []string
	for _, l := range m.Label {
		if !chosen(l.GetName()) {
			names = append(names, l.GetName())
		}
		parts = append(parts, l.GetName()+"="+strconv.Quote(l.GetValue()))
	}
	if !slices.Equal(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(f.Labels))) {
		t.Fatalf("%s has the labels %q, not %q", f.Name, names, f.Labels)
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// chosen tells whether a label is there because a flag asks for it.
func chosen(label string) bool {
	return strings.HasPrefix(label, "label_") || strings.HasPrefix(label, "annotation_")
}

// series is the number of series that count for --max-series.
func (x exposition) series() int {
	n := 0
	for name, rows := range x {
		if !strings.HasPrefix(name, "dra_exporter_") {
			n += len(rows)
		}
	}
	return n
}

// matching returns the series of a family that have all the given labels, as name=value.
func (x exposition) matching(family string, labels ...string) map[string]float64 {
	out := maps.Clone(x[family])
	maps.DeleteFunc(out, func(key string, _ float64) bool {
		return slices.ContainsFunc(labels, func(l string) bool {
			name, value, _ := strings.Cut(l, "=")
			return !strings.Contains(","+key+",", ","+name+"="+strconv.Quote(value)+",")
		})
	})
	return out
}

// one returns the value of the one series of a family with the given labels.
func (x exposition) one(t failer, family string, labels ...string) float64 {
	t.Helper()
	rows := x.matching(family, labels...)
	if len(rows) != 1 {
		t.Fatalf("%s%q: got the series %v, want one", family, labels, rows)
	}
	for _, v := range rows {
		return v
	}
	return 0
}

func parseKey(key string) map[string]string {
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

// lint holds the families' names and help to promlint.
func lint(t *testing.T, s *Snapshot) {
	t.Helper()
	problems, err := promlint.NewWithMetricFamilies(decode(t, expose(s, ExpositionConfig{}))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// sumKey names what is conserved: a quantity of a device, with the quantity's own labels.
type sumKey struct{ device, metric, labels string }

// parts are the values of the device and of those who share in it.
type parts struct {
	device       float64
	claims, pods map[string]float64
	nobody       float64
	read         bool // the device's own value is there
	gauge        bool
}

// sums collects from a scrape what must be conserved.
func (x exposition) sums() map[sumKey]*parts {
	out := map[sumKey]*parts{}
	for _, f := range Families() {
		metric, who := holderOf(f.Name)
		if who == "" || !attributedMetric(metric) {
			continue
		}
		for key, v := range x[f.Name] {
			labels := parseKey(key)
			k, holder := splitLabels(metric, labels)
			p := out[k]
			if p == nil {
				p = &parts{claims: map[string]float64{}, pods: map[string]float64{}, gauge: !strings.HasSuffix(f.Name, "_total")}
				out[k] = p
			}
			switch who {
			case "device":
				p.device, p.read = v, true
			case "claim":
				p.claims[holder] = v
			case "pod":
				p.pods[holder] = v
			default:
				p.nobody = v
			}
		}
	}
	return out
}

// addPlugins adds what pods have through device plugins to what claims have: it is in no family.
func addPlugins(sums map[sumKey]*parts, rows []HolderSnapshot) {
	for i := range rows {
		h := &rows[i]
		values := map[sumKey]float64{
			{h.Device.String(), "own_allocated_seconds_total", ","}: h.Allocated,
			{h.Device.String(), "allocated_seconds_total", ","}:     h.Share,
		}
		for _, v := range h.Values {
			labels := strings.Join(v.Labels[:], ",")
			if v.Quantity != driver.IOBytes {
				labels = ","
			}
			values[sumKey{h.Device.String(), v.Quantity.Spec().Metric, labels}] = v.Value
		}
		for key, v := range values {
			if sums[key] != nil { // the pods have it too
				sums[key].claims[h.Namespace+"/"] = v
			}
		}
	}
}

func holderOf(family string) (metric, who string) {
	for _, prefix := range []string{"dra_device_unattributed_", "dra_device_", "dra_claim_", "dra_pod_"} {
		if rest, ok := strings.CutPrefix(family, prefix); ok {
			return rest, strings.TrimSuffix(strings.TrimPrefix(prefix, "dra_"), "_")
		}
	}
	return "", ""
}

func attributedMetric(metric string) bool {
	switch metric {
	case "utilization_ratio", "active_seconds_total", "memory_used_bytes", "power_watts", "energy_joules_total", "io_bytes_total",
		"allocated_seconds_total", "allocated_share_seconds_total":
		return true
	default:
		return false
	}
}

// splitLabels tells a series' device and quantity from its holder. Divided allocated time belongs to the device's allocated
// time; each holder's own belongs to nothing.
func splitLabels(metric string, labels map[string]string) (sumKey, string) {
	holder := labels["namespace"] + "/" + labels["resourceclaim_name"] + labels["pod"]
	device := labels["driver"] + "/" + labels["pool"] + "/" + labels["device"]
	if metric == "allocated_seconds_total" && holder != "/" {
		metric = "own_allocated_seconds_total"
	}
	if metric == "allocated_share_seconds_total" {
		metric = "allocated_seconds_total"
	}
	return sumKey{device, metric, labels["link"] + "," + labels["direction"]}, holder
}

func sumOf(m map[string]float64) float64 {
	sum := 0.0
	for _, k := range slices.Sorted(maps.Keys(m)) {
		sum += m[k]
	}
	return sum
}
