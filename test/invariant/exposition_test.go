package invariant

import (
	"fmt"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

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
