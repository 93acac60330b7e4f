package invariant

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// report returns a correct snapshot: two pods share the only claim of a device.
func report(second int) *present.Report {
	id := driver.ID{Driver: "gpu.example.com", Pool: "node1", Device: "gpu-0"}
	at := time.Unix(1e9+int64(second), 0)
	joules := func(v float64) []present.ValueReport { return []present.ValueReport{{Quantity: "energy", Value: v}} }
	done := 10 * float64(second)
	return &present.Report{
		Time: at,
		Devices: []present.DeviceReport{{
			Up: new(true),
			ID: id, Values: joules(100 + done), Unattributed: joules(100), AllocatedSeconds: float64(second),
			Shares: []present.ShareReport{
				{Namespace: "team", Claim: "c", Weight: 1}, {Namespace: "ops", Claim: "m", Admin: true},
			},
		}},
		Claims: []present.HolderReport{{
			Namespace: "team", Name: "c", ID: id, Values: joules(done),
			ShareSeconds: float64(second),
		}},
		Pods: []present.HolderReport{
			{Namespace: "team", Name: "a", ID: id, Values: joules(done / 2), ShareSeconds: float64(second) / 2},
			{Namespace: "team", Name: "b", ID: id, Values: joules(done / 2), ShareSeconds: float64(second) / 2},
		},
	}
}

// partition adds a partition of the device with a pod that has used so many of the device's joules.
func partition(r *present.Report, joules float64) {
	values := []present.ValueReport{{Quantity: "energy", Value: joules}}
	id := r.Devices[0].ID
	id.Device = "gpu-0-part-0"
	r.Devices[0].Values[0].Value += joules
	r.Devices = append(r.Devices, present.DeviceReport{ID: id, Parent: "gpu-0", AllocatedSeconds: 1})
	r.Claims = append(r.Claims, present.HolderReport{
		Namespace: "team", Name: "p", ID: id, Values: slices.Clone(values), ShareSeconds: 1,
	})
	r.Pods = append(r.Pods, present.HolderReport{
		Namespace: "team", Name: "p", ID: id, Values: slices.Clone(values), ShareSeconds: 1,
	})
}

// measuresItself adds a partition that measures its pod's joules. They are also in the parent's
// value, where they are unattributed.
func measuresItself(r *present.Report) {
	partition(r, 5)
	r.Devices[0].Values[0].Value -= 5
	r.Devices[1].Values = []present.ValueReport{{Quantity: "energy", Value: 5}}
}

// another adds rows of another claim with the first one's name and of one of its pods, with these
// charges.
func another(r *present.Report, joules float64) {
	for _, rows := range []*[]present.HolderReport{&r.Claims, &r.Pods} {
		other := (*rows)[0]
		other.Values = []present.ValueReport{{Quantity: "energy", Value: joules}}
		other.ShareSeconds = 0
		*rows = append(*rows, other)
	}
	r.Devices[0].Values[0].Value += joules
}

func TestCheck(t *testing.T) {
	endedAt := func(r *present.Report, second int64) {
		at := time.Unix(1e9+second, 0)
		r.Claims[0].Ended, r.Pods[0].Ended, r.Pods[1].Ended = &at, &at, &at
	}
	ended := func(r *present.Report) { endedAt(r, 0) }
	tests := []struct {
		name   string
		second int                     // of the snapshot after those of seconds 1 and 2
		spoil  func(*present.Report)   // that snapshot
		before func(r *present.Report) // the snapshot of second 2
		again  time.Duration           // time after which there is a copy of it
		want   string
	}{
		{name: "right", second: 3, spoil: func(*present.Report) {}},
		{
			name: "not conserved", second: 3, spoil: func(r *present.Report) { r.Devices[0].Values[0].Value++ },
			want: "its claims and nobody",
		},
		{
			name: "pods and claims differ", second: 3, spoil: func(r *present.Report) { r.Pods[0].Values[0].Value++ },
			want: "the pods",
		},
		{
			name: "held time is not conserved", second: 3, spoil: func(r *present.Report) { r.Devices[0].AllocatedSeconds++ },
			want: "held",
		},
		{
			name: "falls", second: 3, spoil: func(r *present.Report) { *r = *report(1); r.Time = r.Time.Add(2 * time.Second) },
			want: "falls from 20 to 10",
		},
		{
			name: "another one has the name", second: 3, before: func(r *present.Report) { another(r, 5) },
			spoil: func(r *present.Report) {
				another(r, 5)
				slices.Reverse(r.Claims)
			},
		},
		{
			name: "another one has the name, and the former is lost", second: 3,
			before: func(r *present.Report) { another(r, 15) }, spoil: func(*present.Report) {}, want: "falls from 35 to 30",
		},
		{name: "pod is lost", second: 3, spoil: func(r *present.Report) {
			r.Pods = r.Pods[:1]
			r.Pods[0].Values[0].Value, r.Pods[0].ShareSeconds = 30, 3
		}, want: "name:b id:{Driver:gpu.example.com Pool:node1 Device:gpu-0}} is lost"},
		{
			name: "admin access has a part", second: 3, spoil: func(r *present.Report) { r.Devices[0].Shares[1].Weight = 0.5 },
			want: "the admin access of ops/m",
		},
		{
			name: "weights do not sum to 1", second: 3, spoil: func(r *present.Report) { r.Devices[0].Shares[0].Weight = 0.5 },
			want: "the weights sum to 0.5",
		},
		{name: "a partition", second: 3, spoil: func(r *present.Report) { partition(r, 5) }},
		{
			name: "a partition is not conserved", second: 3, want: "its claims and nobody",
			spoil: func(r *present.Report) {
				partition(r, 5)
				r.Claims[1].Values[0].Value++
				r.Pods[2].Values[0].Value++
			},
		},
		{
			name: "a partition that is gone", second: 3, before: func(r *present.Report) { partition(r, 5) },
			spoil: func(r *present.Report) {
				partition(r, 5)
				r.Devices = r.Devices[:1]
			},
		},
		{
			name: "a partition that measures itself", second: 3, want: "its claims and nobody",
			spoil: func(r *present.Report) {
				partition(r, 5)
				r.Devices[1].Values = []present.ValueReport{{Quantity: "energy", Value: 5}}
			},
		},
		{
			name: "a partition that measures itself, but not now", second: 3, before: measuresItself,
			spoil: func(r *present.Report) {
				measuresItself(r)
				r.Devices[1].Values = nil
			},
		},
		{name: "rises soon after its end", second: 20, before: ended, spoil: ended},
		{
			name: "rises long after its end", second: 60, before: ended, again: 40 * time.Second, spoil: ended,
			want: "after its end",
		},
		{
			name: "has held again between two snapshots", second: 60, before: ended, again: 40 * time.Second,
			spoil: func(r *present.Report) { endedAt(r, 50) },
		},
		{
			name: "rises when its device is read again", second: 60, again: 40 * time.Second, spoil: ended,
			before: func(r *present.Report) {
				ended(r)
				r.Devices = nil
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c Checker
			first, second, third := report(1), report(2), report(tt.second)
			if tt.before != nil {
				tt.before(second)
			}
			tt.spoil(third)
			all := []*present.Report{first, second}
			if tt.again > 0 {
				again := *second
				again.Time = again.Time.Add(tt.again)
				all = append(all, &again)
			}
			for _, r := range all {
				wrong := c.Check(r)
				must.That(t, len(wrong) == 0, "a right snapshot passes for a wrong one: %v", wrong)
			}
			var said []string
			for _, err := range c.Check(third) {
				said = append(said, err.Error())
			}
			expect.That(t, (tt.want != "" || len(said) == 0) && strings.Contains(strings.Join(said, "\n"), tt.want),
				"said %q, want %q", said, tt.want)
			expect.That(t, c.Compared() != 0, "nothing was compared")
		})
	}
}

// scrape returns a scrape of a device that two pods share. The device has used so many joules,
// after 100 before.
func scrape(t *testing.T, joules float64, edits ...string) map[string]*dto.MetricFamily {
	const device = `driver="gpu.example.com",pool="node1",device="gpu-0"`
	text := fmt.Sprintf(`
# TYPE dra_device_energy_joules_total counter
dra_device_energy_joules_total{DEVICE} %g
# TYPE dra_device_unattributed_energy_joules_total counter
dra_device_unattributed_energy_joules_total{DEVICE} 100
# TYPE dra_claim_energy_joules_total counter
dra_claim_energy_joules_total{namespace="team",resourceclaim_name="c",DEVICE} %g
# TYPE dra_pod_energy_joules_total counter
dra_pod_energy_joules_total{namespace="team",pod="a",DEVICE} %g
dra_pod_energy_joules_total{namespace="team",pod="b",DEVICE} %[3]g
# TYPE dra_device_power_watts gauge
dra_device_power_watts{DEVICE} 10
# TYPE dra_device_unattributed_power_watts gauge
dra_device_unattributed_power_watts{DEVICE} 10
# TYPE dra_device_allocated_seconds_total counter
dra_device_allocated_seconds_total{DEVICE} 9
# TYPE dra_claim_allocated_share_seconds_total counter
dra_claim_allocated_share_seconds_total{namespace="team",resourceclaim_name="c",DEVICE} 9
# TYPE dra_pod_allocated_share_seconds_total counter
dra_pod_allocated_share_seconds_total{namespace="team",pod="a",DEVICE} 9
# TYPE dra_exporter_series gauge
dra_exporter_series 10
`, 100+joules, joules, joules/2)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	text = strings.ReplaceAll(strings.NewReplacer(edits...).Replace(text), "DEVICE", device)
	return must.Get(parser.TextToMetricFamilies(strings.NewReader(text)))(t)
}

// withPartition edits a scrape of 30 joules so that 5 of them belong to a pod of a partition, to
// which it adds so many.
func withPartition(joules float64) []string {
	const part, holders = `driver="gpu.example.com",pool="node1",device="gpu-0-part-0"`, `dra_claim_energy_joules_total` +
		`{namespace="team",resourceclaim_name="p",PART} %[1]g
# TYPE dra_pod_energy_joules_total counter
dra_pod_energy_joules_total{namespace="team",pod="p",PART} %[1]g
`
	const info = "\n# TYPE dra_device_info gauge\ndra_device_info{parent=\"gpu-0\",PART} 1"
	return []string{
		"# TYPE dra_pod_energy_joules_total counter\n", strings.ReplaceAll(fmt.Sprintf(holders, joules), "PART", part),
		"dra_device_energy_joules_total{DEVICE} 130", "dra_device_energy_joules_total{DEVICE} 135",
		"dra_exporter_series 10", "dra_exporter_series 13" + strings.ReplaceAll(info, "PART", part),
	}
}

// withPlugin is withPartition for a partition that a device plugin gave to its pod.
func withPlugin() []string {
	edits := withPartition(5)
	edits[1] = strings.Replace(edits[1], "} 5", "} 3", 1) // of the claim
	edits[5] = strings.Replace(edits[5], "series 13", "series 14", 1) + `
# TYPE dra_pod_claim_info gauge
dra_pod_claim_info{pod="p",resourceclaim_name="",driver="gpu.example.com",pool="node1",device="gpu-0-part-0"} 1`
	return edits
}

func TestExposition(t *testing.T) {
	const info = "\n# TYPE dra_pod_claim_info " +
		"gauge\ndra_pod_claim_info{namespace=\"team\",pod=\"b\",resourceclaim_name=\"\",DEVICE} 1"
	const claim = `dra_claim_energy_joules_total{namespace="team",resourceclaim_name="c",DEVICE}`
	for _, tt := range []struct {
		name   string
		joules float64
		edits  []string
		want   string
	}{
		{name: "right", joules: 30},
		{name: "not conserved", joules: 30, edits: []string{"} 100\n", "} 101\n"}, want: "of its pods and nobody 131"},
		{
			name: "pods and claims differ", joules: 30, edits: []string{`pod="b",DEVICE} 15`, `pod="b",DEVICE} 16`},
			want: "the claims have 30, the pods 31",
		},
		{
			name: "a device plugin's pod", joules: 30,
			edits: []string{`"c",DEVICE} 30`, `"c",DEVICE} 20`, "dra_exporter_series 10", "dra_exporter_series 11" + info},
		},
		{
			name: "held time is not conserved", joules: 30, edits: []string{`"c",DEVICE} 9`, `"c",DEVICE} 8`},
			want: "the claims have 8, the pods 9",
		},
		{
			name: "a gauge is not conserved", joules: 30,
			edits: []string{"unattributed_power_watts{DEVICE} 10", "unattributed_power_watts{DEVICE} 9"}, want: "power_watts",
		},
		{name: "a partition", joules: 30, edits: withPartition(5)},
		{name: "a device plugin's pod of a partition", joules: 30, edits: withPlugin()},
		{name: "a partition is not conserved", joules: 30, edits: withPartition(6), want: "of its pods and nobody 136"},
		{name: "falls", joules: 10, want: "falls from 20 to 10"},
		{
			name: "is lost", joules: 30, edits: []string{claim, strings.Replace(claim, `"c"`, `"d"`, 1)},
			want: "is lost; it was 20",
		},
		{name: "twice", joules: 30, edits: []string{`pod="b"`, `pod="a"`}, want: "is there twice"},
		{
			name: "not counted", joules: 30, edits: []string{"dra_exporter_series 10", "dra_exporter_series 9"},
			want: "10 series",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var e Exposition
			if wrong := e.Check(scrape(t, 20)); wrong != nil || e.Compared() != 3 {
				t.Fatalf("%d sums were compared, wrong: %v", e.Compared(), wrong)
			}
			wrong := fmt.Sprint(e.Check(scrape(t, tt.joules, tt.edits...)))
			expect.That(t, (tt.want != "" || wrong == "[]") && strings.Contains(wrong, tt.want),
				"wrong: %s, want %q", wrong, tt.want)
		})
	}
}
