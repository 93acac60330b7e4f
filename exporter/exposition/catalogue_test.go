package exposition_test

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// fanPower is a quantity that the standard catalogue does not have: an additive gauge with a label,
// whose integral fills a counter, and a state that is kept as long as dra_device_up.
func fanPower() driver.Catalogue {
	fans := []driver.Label{{Name: "fan", Values: []string{"front", "rear"}}}
	return driver.Standard().With(
		driver.Spec{
			Name: "fan_power", Metric: "fan_power_watts", Unit: "watts", Sharing: driver.Additive, NonNegative: true, Max: 100,
			Help: "Power of the fans.", Labels: fans, Integral: "fan_energy",
		},
		driver.Spec{
			Name: "fan_energy", Metric: "fan_energy_joules_total", Unit: "joules", Type: driver.Counter,
			Sharing: driver.Additive, NonNegative: true, Help: "Energy of the fans.", Labels: fans,
		},
		driver.Spec{Name: "fan_up", Metric: "fan_up", Help: "1 if the fan turns.", Rank: driver.RankState},
	)
}

// fanNode is a node whose one device is shared by claim-0 of pod-0 and claim-1 of pod-1.
type fanNode struct {
	catalogue driver.Catalogue
	books     *ledger.Ledger
	limiter   *exposition.Limiter
	now       time.Time
}

func newFanNode(maxSeries int) *fanNode {
	catalogue := fanPower()
	return &fanNode{
		catalogue: catalogue,
		books:     ledger.New(ledger.Config{Retention: time.Minute, Catalogue: catalogue}),
		limiter:   exposition.NewLimiter(maxSeries, exportertest.Everything()),
		now:       time.Unix(1_000_000, 0),
	}
}

// tick reads the device once.
func (n *fanNode) tick(watts float64) (*exposition.Snapshot, []driver.Rejection) {
	n.now = n.now.Add(time.Second)
	power, _ := n.catalogue.Named("fan_power")
	up, _ := n.catalogue.Named("fan_up")
	id := driver.ID{Driver: "gpu.example.com", Pool: "node", Device: "gpu-0"}
	in := join.Input{
		Catalogue: n.catalogue,
		View:      podresources.View{At: n.now},
		Inventory: driver.Inventory{id: {Hardware: driver.Hardware{UUID: "GPU-0"}}},
		Sources: []join.SourceSamples{{Name: "fans", Samples: []driver.Sample{{
			Hardware: driver.Hardware{UUID: "GPU-0"},
			Readings: []driver.Reading{
				{Quantity: power, Labels: driver.Labels{"front"}, Value: watts, At: n.now},
				{Quantity: up, Value: 1, At: n.now},
			},
		}}}},
	}
	for i := range 2 {
		in.View.Allocations = append(in.View.Allocations, podresources.Allocation{
			Claim: podresources.Claim{Namespace: "ns", Name: fmt.Sprintf("claim-%d", i)}, Device: id,
			Holders: []podresources.Holder{
				{Pod: podresources.Pod{Namespace: "ns", Name: fmt.Sprintf("pod-%d", i)}, Container: "c"},
			},
		})
	}
	in.View.Allocations = jointest.Held(in.View.Allocations...)
	result := join.Join(in)
	return n.limiter.Apply(n.books, n.books.Advance(result, n.now)), result.Rejected
}

// scrape renders a snapshot.
func (n *fanNode) scrape(t *testing.T, s *exposition.Snapshot) string {
	e := exposition.New(prometheus.NewRegistry(), func() *exposition.Snapshot { return s },
		exposition.Config{Catalogue: n.catalogue, Choices: exportertest.Everything()})
	var out bytes.Buffer
	_, err := e.Write(&out, expfmt.NewFormat(expfmt.TypeTextPlain))
	must.That(t, err == nil, "%v", err)
	return out.String()
}

// An entry of the catalogue is all that a new quantity needs: its families of devices, claims and
// pods, its integral, the reference, the report and the limit know of it.
func TestNewQuantity(t *testing.T) {
	n := newFanNode(0)
	n.tick(10)
	s, rejected := n.tick(10)
	must.That(t, len(rejected) == 0, "rejected: %v", rejected)
	const device = `driver="gpu.example.com",pool="node",device="gpu-0"`
	text := n.scrape(t, s)
	for _, want := range []string{
		"# HELP dra_device_fan_power_watts Power of the fans.\n# TYPE dra_device_fan_power_watts gauge\n",
		`dra_device_fan_power_watts{` + device + `,fan="front"} 10`,
		`dra_claim_fan_power_watts{namespace="ns",resourceclaim_name="claim-1",` + device + `,fan="front"} 5`,
		`dra_pod_fan_power_watts{namespace="ns",pod="pod-0",` + device + `,fan="front"} 5`,
		`dra_device_unattributed_fan_power_watts{` + device + `,fan="front"} 0`,
		"# TYPE dra_device_fan_energy_joules_total counter\n",
		`dra_device_fan_energy_joules_total{` + device + `,fan="front"} 10`,
		`dra_claim_fan_energy_joules_total{namespace="ns",resourceclaim_name="claim-0",` + device + `,fan="front"} 5`,
		`dra_pod_fan_energy_joules_total{namespace="ns",pod="pod-1",` + device + `,fan="front"} 5`,
		`dra_device_quantity_source_info{` + device + `,quantity="fan_energy",source="fans (integral of its gauge)"} 1`,
		`dra_device_fan_up{` + device + `} 1`,
	} {
		expect.That(t, strings.Contains(text, want), "missing: %s", want)
	}
	expect.That(t, !strings.Contains(text, "dra_claim_fan_up"), "claims have a quantity that is not additive")
	if t.Failed() {
		t.Log(text)
	}
	var report bytes.Buffer
	err := present.WriteReport(&report, s, present.Config{Node: "node", QuietAfter: time.Minute})
	fans := []byte(`{"quantity":"fan_power","labels":{"fan":"front"},"value":10,"source":"fans"}`)
	if err != nil || !bytes.Contains(report.Bytes(), fans) {
		t.Errorf("the report lacks it: %v, %s", err, &report)
	}
	presents(t, s)
	_, rejected = n.tick(101)
	expect.That(t, len(rejected) == 1 && rejected[0].Reason == driver.ReasonOutOfRange,
		"above its maximum: rejected %v", rejected)
}

// presents checks what people see of the quantity.
func presents(t *testing.T, s *exposition.Snapshot) {
	t.Helper()
	for _, tt := range []struct {
		of   present.Subject
		want string
	}{
		{present.Subject{Device: "gpu-0"}, `fan power (front) +10 W +fans\n`},
		{present.Subject{Device: "gpu-0"}, `fan energy (front) +10 J[^\n]* +fans`},
		{present.Subject{Claim: "ns/claim-1"}, `fan power (front) +5 W`},
		{present.Subject{Pod: "ns/pod-0"}, `fan power (front) +5 W`},
	} {
		d := present.NewDetail(s, present.Config{QuietAfter: time.Minute}, tt.of)
		want := strings.NewReplacer("(", `\(`, ")", `\)`).Replace(tt.want)
		if text := strings.Join(d.Lines(), "\n") + "\n"; !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("%s is not said of %+v:\n%s", want, tt.of, text)
		}
	}
}

func TestNewQuantityReference(t *testing.T) {
	fills := func(q driver.Quantity) []string {
		if power, _ := fanPower().Named("fan_power"); q == power {
			return []string{"fans"}
		}
		return nil
	}
	reference := exposition.Reference(fanPower(), nil, fills)
	for _, want := range []string{
		"| `dra_device_fan_power_watts` `fan` | Power of the fans. fan: front, rear. | fans |",
		"| `dra_claim_fan_power_watts` `fan` | The claim's part. | divided |", "| `dra_pod_fan_energy_joules_total` `fan` |",
		"| `dra_device_unattributed_fan_power_watts` `fan` |",
	} {
		expect.That(t, strings.Contains(reference, want), "the reference lacks %s", want)
	}
}
