package exposition_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// The lines that each choice of a group leaves out.
func leftOut() map[exposition.Group]map[string]string {
	return map[exposition.Group]map[string]string{
		exposition.GroupErrors: {
			exposition.Off: `^dra_(claim|pod)_(errors_total|throttled_seconds_total|last_error_timestamp_seconds)`,
		},
		exposition.GroupPeaks: {exposition.Off: `^dra_(device|claim|pod)_(memory_used_peak_bytes|power_peak_watts)`},
		exposition.GroupPods: {
			exposition.Off: `^dra_pod_`, exposition.Info: `^dra_pod_[a-z_]+_(seconds|total|ratio|watts|bytes){`,
		},
		exposition.GroupQuantitySource: {
			exposition.Off: `^dra_device_quantity_source_info`,
			exposition.Estimates: `^dra_device_quantity_source_info.*(source="[^" ]*"|` +
				`quantity="(active|tensor)_seconds",source="[^ ]* \(integral of its gauge\)")`,
		},
		exposition.GroupDetails: {
			exposition.Off: `^dra_(claim_(engine_utilization_ratio|tensor_(seconds_total|throughput_ratio)|` +
				`throttled_seconds_total)|device_((allocated|used)_seconds_total|memory_used_peak_bytes|power_peak_watts|` +
				`tensor_throughput_ratio)|device_unattributed_.*|pod_(allocated_seconds_total|io_bytes_total|power_peak_watts|` +
				`tensor_throughput_ratio)){`,
		},
		exposition.GroupLifecycle: {exposition.Off: `^dra_claim_(preparation|first_activity)_seconds`},
		exposition.GroupHistograms: { // in text
			exposition.Off: notClassic, exposition.Native: notClassic,
		},
	}
}

const notClassic = `^dra_claim_[a-z_]+_(distribution_|seconds_bucket.*le="[0-9])`

// Each group leaves out its own series alone, they do not count as series, and no claim, pod or
// device has others because of it.
func TestGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		choices := exposition.Choices{}
		var out []string
		for _, group := range exposition.Groups() {
			chosen := rapid.SampledFrom(group.Choices).Draw(t, string(group.Group))
			choices[group.Group] = chosen
			if lines := leftOut()[group.Group][chosen]; lines != "" {
				out = append(out, lines)
			}
		}
		asChosen, all, ofDevices := newFilter(out...), newFilter(), newFilter("^dra_exporter_")
		w := exportertest.NewWorld(t)
		w.AddSource("errors", driver.Errors, driver.ThrottledSeconds)
		books, limiter := ledger.New(exportertest.LedgerConfig()), exposition.NewLimiter(0, choices)
		for range rapid.IntRange(3, exportertest.Steps).Draw(t, "steps") {
			w.Step(exportertest.Pauses())
			s := books.Advance(join.Join(w.Input()), w.Now)
			some := limiter.Apply(books, s)
			e := exportertest.Render(some, exposition.Config{Choices: choices})
			text := exportertest.Encode(t, e, expfmt.NewFormat(expfmt.TypeTextPlain))
			want := asChosen.rest(exportertest.Text(t, exportertest.Whole(s)))
			exportertest.SameText(t, want, all.rest(text))
			n := strings.Count(ofDevices.rest(want), "\n")
			if choices.Of(exposition.GroupHistograms) != exposition.Classic {
				n += distributions(exportertest.Decode(t, e))
			}
			if n != some.Series {
				t.Fatalf("%d series are exported, %d counted", n, some.Series)
			}
		}
	})
}

// distributions returns the number of distributions, which are in no text without classic buckets.
func distributions(families []*dto.MetricFamily) int {
	n := 0
	for _, f := range families {
		if isDistribution(f) {
			n += len(f.Metric)
		}
	}
	return n
}

// The first choice of each group is its default.
func TestDefaultChoices(t *testing.T) {
	for _, group := range exposition.Groups() {
		if got := exposition.Choices(nil).Of(group.Group); got != group.Choices[0] {
			t.Errorf("%s is %q by default, and its flag says %q", group.Group, got, group.Choices[0])
		}
	}
}

// filter leaves out lines of answers, by their series.
type filter struct {
	pattern *regexp.Regexp
	known   map[string]bool // series, and whether they match: they come again in each answer
}

// newFilter returns a filter of the series that match one of the patterns, of comments, and of the
// number of series.
func newFilter(patterns ...string) *filter {
	patterns = append(patterns, "^#", "^dra_exporter_series ")
	return &filter{regexp.MustCompile(strings.Join(patterns, "|")), map[string]bool{}}
}

// rest returns the lines of an answer that are not left out.
func (f *filter) rest(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		series := line[:strings.LastIndexByte(line, ' ')+1]
		out, known := f.known[series]
		if !known {
			out = f.pattern.MatchString(series)
			f.known[series] = out
		}
		if !out {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Of the groups that cost memory, a ledger without them keeps nothing, and the device keeps its
// own errors.
func TestLedgerWithoutGroups(t *testing.T) {
	for name, tc := range map[string]struct {
		config ledger.Config
		want   string
	}{
		"all":            {ledger.Config{}, "errors=2 errors_of_claims=1 peaks=3 distributions=1 at=1"},
		"without errors": {ledger.Config{WithoutErrors: true}, "errors=2 errors_of_claims=0 peaks=3 distributions=1 at=1"},
		"without peaks":  {ledger.Config{WithoutPeaks: true}, "errors=2 errors_of_claims=1 peaks=0 distributions=1 at=1"},
		"without distributions": {
			ledger.Config{WithoutDistributions: true}, "errors=2 errors_of_claims=1 peaks=3 distributions=0 at=1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			h.Ledger = ledger.New(tc.config)
			h.Hold("c", "p")
			for i := range 3 {
				h.Read(jointest.Watts(100), driver.Reading{
					Quantity: driver.Errors, Labels: driver.Labels{"xid", "31"}, Value: float64(i),
				})
				h.Pass(time.Second)
			}
			x := exportertest.Scrape(t, h.Last)
			got := fmt.Sprintf("errors=%v errors_of_claims=%d peaks=%d distributions=%d at=%d",
				x.One(t, "dra_device_errors_total"), len(x["dra_claim_errors_total"]),
				len(x["dra_claim_power_peak_watts"])+len(x["dra_pod_power_peak_watts"])+len(x["dra_device_power_peak_watts"]),
				len(x["dra_claim_power_distribution_watts"]),
				len(x["dra_device_last_error_timestamp_seconds"]))
			if got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
