package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// rollout is a change of the DaemonSet.
type rollout struct {
	before   map[string]counted // the counters of the pod that was replaced
	replaced time.Time          // when the new pod existed
}

// counted is a counter, and since when it counts.
type counted struct {
	value   float64
	created time.Time
}

// replace changes the DaemonSet and waits for the new pod.
func (w *world) replace() rollout {
	before, counters := w.pods()[0].Name, w.counters(w.T)
	w.install(object{"podAnnotations": object{"changed": "yes"}})
	after := w.pods()
	must.That(w, len(after) == 1 && after[0].Name != before, "the pods are %v after %s", after, before)
	return rollout{counters, time.Now()}
}

// counters scrapes the counters of devices, claims and pods, by name and labels.
func (w *world) counters(t *testing.T) map[string]counted {
	t.Helper()
	_, body := w.get(t, "http://"+w.pods()[0].Status.PodIP+":10985/metrics",
		"Authorization", w.token(release+"-scraper"), "Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
	out := map[string]counted{}
	for decoder := expfmt.NewDecoder(bytes.NewReader(body), expfmt.NewFormat(expfmt.TypeProtoDelim)); ; {
		var family dto.MetricFamily
		if err := decoder.Decode(&family); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		if family.GetType() != dto.MetricType_COUNTER || strings.HasPrefix(family.GetName(), "dra_exporter_") ||
			!strings.HasPrefix(family.GetName(), "dra_") {
			continue
		}
		for _, m := range family.GetMetric() {
			c := m.GetCounter()
			out[fmt.Sprintf("%s%v", family.GetName(), m.GetLabel())] = counted{c.GetValue(), c.GetCreatedTimestamp().AsTime()}
		}
	}
}

// testRollout compares the energy attributed to the claims across the rollout with the energy that
// they used. No counter is reset: each counts since the same time, and Prometheus sees none.
func (w *world) testRollout(t *testing.T, prometheus live.Prometheus, r rollout) {
	// Until two scrapes after the hold.
	live.Await(t, startTimeout, "the new pod is scraped", func() error {
		if wait := time.Until(r.replaced.Add(3 * interval)); wait > 0 {
			return fmt.Errorf("in %v", wait)
		}
		return w.claims(prometheus)
	})
	all := must.Get(prometheus.Query(t.Context(), `dra_claim_energy_joules_total[10m]`, time.Now()))(t)
	names := map[string]int{}
	var charged, truth float64
	for _, s := range all {
		names[s.Labels["resourceclaim_name"]+" "+s.Labels["device"]]++
		c, d := increase(s.Samples)
		charged += c
		truth = max(truth, d.Seconds()*drawn)
	}
	expect.That(t, len(names) == 5 && slices.Max(slices.Collect(maps.Values(names))) == 1,
		"the series are %v, want one for each device of each claim", names)
	lost := time.Duration((truth - charged) / drawn * float64(time.Second)).Round(10 * time.Millisecond)
	t.Logf("attributed %.0f J of %.0f J: the rollout lost %v", charged, truth, lost)
	expect.That(t, lost <= interval && lost >= -interval,
		"the rollout lost %v, which is more than the interval of %v", lost, interval)
	w.testGoesOn(t, prometheus, r)
}

// minCounters is how many counters the devices, claims and pods of the node have at least.
const minCounters = 30

// testGoesOn checks that no counter was reset by the rollout.
func (w *world) testGoesOn(t *testing.T, prometheus live.Prometheus, r rollout) {
	t.Helper()
	now := w.counters(t)
	for key, before := range r.before {
		after, there := now[key]
		if !there || after.value < before.value || before.created.IsZero() || !after.created.Equal(before.created) {
			t.Errorf("%s was %+v, and is %+v", key, before, after)
		}
	}
	const counters = `{__name__=~"dra_(device|claim|pod)_.*_total"}[10m]`
	at := time.Now()
	samples := must.Get(prometheus.Query(t.Context(), counters, at))(t)
	families, over := map[string]bool{}, 0
	for _, s := range samples {
		families[s.Labels["__name__"]] = true
		if s.Samples[0].At.Before(r.replaced.Add(-interval)) && s.Samples[len(s.Samples)-1].At.After(r.replaced) {
			over++
		}
	}
	for family := range families { // the result of a function has no name, so of each by itself
		resets, err := prometheus.Query(t.Context(), "resets("+family+"[10m])", at)
		expect.That(t, err == nil && len(resets) != 0, "resets of %s: %d series, %v", family, len(resets), err)
		for _, s := range resets {
			expect.That(t, s.Samples[0].Value == 0, "Prometheus sees %v resets of %s%v", s.Samples[0].Value, family, s.Labels)
		}
	}
	t.Logf("%d counters go on over the rollout, %d of the series in Prometheus", len(r.before), over)
	expect.That(t, len(r.before) >= minCounters && over >= minCounters,
		"%d counters and %d series were compared, want at least %d", len(r.before), over, minCounters)
}

// increase returns the increase of a counter over its samples, and the time from the first sample
// above 0 to the last. A counter that decreased restarted at 0.
func increase(samples []live.Sample) (rise float64, span time.Duration) {
	for len(samples) > 0 && samples[0].Value == 0 {
		samples = samples[1:]
	}
	for i := 1; i < len(samples); i++ {
		if d := samples[i].Value - samples[i-1].Value; d >= 0 {
			rise += d
		} else {
			rise += samples[i].Value
		}
	}
	if len(samples) > 0 {
		span = samples[len(samples)-1].At.Sub(samples[0].At)
	}
	return rise, span
}
