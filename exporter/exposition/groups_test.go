package exposition_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
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
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
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

// Data of API objects about holders is shown. Data about names stays for the retention, and data
// about holds goes with the holder.
func TestFactsShown(t *testing.T) {
	h := exportertest.NewHistory(t)
	a := h.Hold("claim", "pod")
	a.ClaimUID, a.ClaimLabels = "c-1", []string{"label_team", "red"}
	a.Conditions = []podresources.Condition{{Type: "Ready", Status: "True"}, {Type: "Strange", Status: "Unknown"}}
	a.Network = &podresources.Network{
		Interface: "net1", IPs: []string{"192.0.2.1", "2001:db8::1"}, HardwareAddress: "02:00:00:00:00:01",
	}
	a.Holders[0].Meta = &podresources.PodMeta{
		OwnerKind: "Job", OwnerName: "train", WorkloadKind: "JobSet", WorkloadName: "llm", Queue: "gold",
		Labels: []string{"label_app", "x", "annotation_note", ""},
	}
	const device = `device="gpu-0",driver="gpu.example.com",`
	const holding = `namespace="team",pool="node1",resourceclaim_name="claim",share_id="",`
	const network = device + `hardware_address="02:00:00:00:00:01",interface="net1",ip=`
	info := map[string][]string{
		"dra_pod_info": {
			`annotation_note="",created_by_kind="Job",created_by_name="train",label_app="x",` +
				`namespace="team",pod="pod",queue="gold",uid="uid-pod",workload_kind="JobSet",workload_name="llm"`,
		},
		"dra_claim_info": {`label_team="red",namespace="team",resourceclaim_name="claim",uid="c-1"`},
	}
	now := maps.Clone(info)
	now["dra_claim_device_condition"] = []string{
		device + holding + `status="True",type="Ready"`, device + holding + `status="Unknown",type="Strange"`,
	}
	now["dra_claim_network_info"] = []string{
		network + `"192.0.2.1",namespace="team",pool="node1",resourceclaim_name="claim",share_id=""`,
		network + `"2001:db8::1",namespace="team",pool="node1",resourceclaim_name="claim",share_id=""`,
	}
	check := func(x exportertest.Scraped, want map[string][]string) {
		got := map[string][]string{}
		for _, family := range slices.Sorted(maps.Keys(now)) {
			if rows := x[family]; len(rows) > 0 {
				got[family] = slices.Sorted(maps.Keys(rows))
			}
		}
		expect.Equal(t, "", want, got)
	}
	check(h.Tick(time.Second), now)

	// An API server that is away for once takes nothing back.
	a.Holders[0].Meta, a.ClaimLabels, a.ClaimUID = nil, nil, ""
	check(h.Tick(time.Second), now)
	h.Free("claim")
	check(h.Tick(time.Second), info)
}

func TestNetworkWithoutAddress(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("claim", "pod").Network = &podresources.Network{Interface: "ib0"}
	if rows := h.Tick(time.Second)["dra_claim_network_info"]; len(rows) != 1 {
		t.Errorf("rows %v, want one", rows)
	}
}

// unclaimedFamilies are those of pods that have a device by a device plugin, without a claim.
func unclaimedFamilies() []string {
	return []string{
		"dra_pod_unclaimed_allocated_seconds_total", "dra_pod_unclaimed_used_seconds_total",
		"dra_pod_unclaimed_last_active_timestamp_seconds",
	}
}

// plug gives gpu-0 to a pod by a device plugin.
func plug(h *exportertest.History, pod string) {
	a := jointest.Allocation("gpu-0", "", pod)
	h.In.View.Allocations = append(h.In.View.Allocations, a)
}

// Only pods that have a device by a device plugin, and not also by a claim, have families of their
// own: how long they held it, and how long they used it. The counters stay for the retention.
func TestUnclaimed(t *testing.T) {
	h := exportertest.NewHistory(t)
	pods := func(x exportertest.Scraped, family string) []string {
		var out []string
		for _, pod := range []string{"plugged", "claims", "both"} {
			if len(x.Matching(family, "pod="+pod)) > 0 {
				out = append(out, pod)
			}
		}
		return out
	}
	ticks := func(utilization float64, n int) exportertest.Scraped {
		var x exportertest.Scraped
		for range n {
			h.Read(driver.Reading{Quantity: driver.Utilization, Value: utilization})
			x = h.Tick(time.Second)
		}
		return x
	}
	plug(h, "plugged")
	ticks(0.5, 5)
	busyUntil := exportertest.Unix(h.Now)
	x := ticks(0, 6)
	h.Expect(x, map[[2]string]float64{{unclaimedFamilies()[0], "pod=plugged"}: 10})
	used := x.One(t, unclaimedFamilies()[1], "pod=plugged")
	expect.That(t, used >= 3.5 && used <= 5.5, "the pod used its device for %v s, want 4 to 5", used)
	if last := x.One(t, unclaimedFamilies()[2], "pod=plugged"); last < busyUntil-1.5 || last > busyUntil {
		t.Errorf("the pod was last active at %v, the device until %v", last, busyUntil)
	}
	if got := pods(x, "dra_claim_used_seconds_total"); got != nil {
		t.Errorf("it has families of claims: %v", got)
	}

	h.Hold("c", "claims", "both")
	plug(h, "both")
	x = ticks(0.5, 3)
	for _, family := range unclaimedFamilies()[:1] { // three holders divide it equally: whose use is unknown
		expect.Equal(t, family, []string{"plugged"}, pods(x, family))
	}

	h.In.View.Allocations = nil
	x = ticks(0, 2)
	if got := pods(x, unclaimedFamilies()[0]); !slices.Equal(got, []string{"plugged"}) {
		t.Errorf("of the pods that ended, %v have their counter", got)
	}
	if got := x.Matching("dra_pod_claim_info"); len(got) > 0 {
		t.Errorf("pods that ended hold %v", slices.Collect(maps.Keys(got)))
	}
}
