package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// interval is the scrape interval.
const interval = 6 * time.Second

// drawn is the power of all claims of the workloads: those on single (1 GPU), both (2 GPUs), and
// shared-0.
const drawn = 4 * watts

// The DaemonSet starts with its own ServiceAccount and only the rights of the chart. Claims appear
// in Prometheus, and only authorized scrapers can read them. A rollout does not change the labels
// of series, is no reset of a counter, and loses at most one interval.
func TestDaemonSet(t *testing.T) {
	w := newWorld(t)
	w.kubectl("create", "namespace", namespace)
	w.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=privileged")
	w.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--all-namespaces", "--timeout="+startTimeout.String())
	t.Run("Manifests", func(t *testing.T) { w.testManifests(t) })
	begun := time.Now()
	w.install(nil)
	t.Logf("installed in %v", time.Since(begun).Round(100*time.Millisecond))
	prometheus := w.startPrometheus("127.0.0.1:9090")
	live.Await(t, startTimeout, "the claims are in Prometheus", func() error { return w.claims(prometheus) })
	t.Logf("the claims were in Prometheus after %v", time.Since(begun).Round(100*time.Millisecond))
	t.Run("Probes", func(t *testing.T) { w.testProbes(t) })
	t.Run("Access", func(t *testing.T) { w.testAccess(t) })
	t.Run("Collector", func(t *testing.T) { w.testCollector(t) })
	t.Run("Writes", func(t *testing.T) { w.testWrites(t) })
	t.Run("OlderWrites", func(t *testing.T) { w.testOlderWrites(t) })
	replaced := w.replace()
	t.Run("Mounts", func(t *testing.T) { w.testMounts(t) })
	t.Run("Rollout", func(t *testing.T) { w.testRollout(t, prometheus, replaced) })
	t.Run("Autoscaling", func(t *testing.T) { w.testAutoscaling(t) })
	t.Run("Gateway", func(t *testing.T) { w.testGateway(t) })
	w.install(object{"web": object{}})
	t.Run("Top", func(t *testing.T) { w.testTop(t) })
	t.Run("Documents", func(t *testing.T) { w.testDocuments(t) })
	t.Run("Password", func(t *testing.T) { w.testPassword(t) })
	t.Run("Incidents", func(t *testing.T) { w.testIncidents(t) })
}

// claims compares the data in Prometheus with the workloads.
func (w *world) claims(prometheus live.Prometheus) error {
	got, err := prometheus.Query(w.Context(), "dra_claim_device_info", time.Now())
	if err != nil {
		return err
	}
	holds := map[string]int{}
	for _, s := range got {
		if s.Labels["admin_access"] == "true" {
			continue
		}
		holds[s.Labels["namespace"]+"/"+s.Labels["resourceclaim_name"]]++
		if s.Labels["node"] != node.Name || s.Labels["instance"] != node.Name || s.Labels["job"] != namespace+"/"+release {
			return fmt.Errorf("the target's labels are in %v", s.Labels)
		}
		for _, label := range []string{"pod", "container", "endpoint", "exported_namespace"} {
			if s.Labels[label] != "" {
				return fmt.Errorf("a label %s is in %v", label, s.Labels)
			}
		}
	}
	if diff := cmp.Diff(map[string]int{
		"default/single": 1, "default/both": 2, "default/part-a": 1, "default/part-b": 1,
		"default/interface": 1,
	},
		holds); diff != "" {
		return fmt.Errorf("%s", diff)
	}
	measured, err := prometheus.Query(w.Context(), "histogram_count(dra_claim_power_distribution_watts)", time.Now())
	if err == nil && len(measured) == 0 {
		err = errors.New("no native histogram was scraped")
	}
	return err
}

// healthy waits until the kubelet's probes pass, and checks that the liveness probe never failed.
// It returns the container.
func (w *world) healthy(t *testing.T) corev1.Container {
	t.Helper()
	var pods []corev1.Pod
	live.Await(t, startTimeout, "there is one pod, and it is ready", func() error {
		pods = w.pods()
		if len(pods) != 1 || len(pods[0].Status.ContainerStatuses) == 0 {
			return fmt.Errorf("the pods are %+v", pods)
		}
		if status := pods[0].Status.ContainerStatuses[0]; !status.Ready {
			return fmt.Errorf("the container is %+v", status)
		}
		return nil
	})
	if status := pods[0].Status.ContainerStatuses[0]; status.RestartCount != 0 {
		t.Errorf("the container is %+v", status)
	}
	var events corev1.EventList
	must.Do(t, json.Unmarshal([]byte(w.kubectl("get", "events", "-n", namespace, "-o", "json")), &events))
	for i := range events.Items {
		if e := &events.Items[i]; e.Reason == "Unhealthy" &&
			strings.Contains(e.Message, "Liveness") { // not ready at first is normal
			t.Errorf("%s: %s", e.Reason, e.Message)
		}
	}
	return pods[0].Spec.Containers[0]
}

func (w *world) testProbes(t *testing.T) {
	if c := w.healthy(t); c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.LivenessProbe.HTTPGet.Path != "/healthz" {
		t.Errorf("the probes are %v and %v", c.ReadinessProbe, c.LivenessProbe)
	}
}

// testAccess sends requests with tokens of service accounts that are authorized, not authorized,
// and do not exist.
func (w *world) testAccess(t *testing.T) {
	address := "http://" + w.pods()[0].Status.PodIP + ":10985"
	scraper := w.token(release + "-scraper")
	for _, test := range []struct {
		path, authorization string
		want                int
	}{
		{"/metrics", scraper, 200},
		{"/api/v1/snapshot", scraper, 200},
		{"/", scraper, 403},
		{"/metrics", w.token("default"), 403},
		{"/metrics", "Bearer " + strings.Repeat("x", 100), 401},
		{"/metrics", "", 401},
		{"/healthz", "", 200},
		{"/readyz", "", 200},
	} {
		if status, body := w.get(t, address+test.path, "Authorization", test.authorization); status != test.want {
			t.Errorf("%s with %.20q: status %d, want %d: %.200s", test.path, test.authorization, status, test.want, body)
		}
	}
}

// token returns the value of a header that proves to be a service account.
func (w *world) token(account string) string {
	return "Bearer " + strings.TrimSpace(w.kubectl("create", "token", "-n", namespace, account))
}

// get requests an address from within the pods' network, with names and values of headers in turns.
func (w *world) get(t *testing.T, address string, header ...string) (status int, body []byte) {
	a := must.Get(live.Ask(t.Context(), w.network.client(), address, header...))(t)
	return a.Status, a.Body
}

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
