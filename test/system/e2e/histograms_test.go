package e2e

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// served is a value that an endpoint has served, and when.
type served struct {
	watts float64
	at    time.Time
}

// swinging is an endpoint of a GPU that draws 100 W for two thirds of the time, 200 W for a quarter
// and 400 W for the rest. After some readings it no longer reports the power.
type swinging struct {
	mu   sync.Mutex
	told []served
}

const swings = 25

func (s *swinging) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.told) >= swings {
		fixed(fmt.Sprintf("temperature{uuid=%q} 50\n", uuid(0)))(w, r)
		return
	}
	watts := []float64{100, 100, 200, 100, 100, 200, 100, 400, 100, 200, 100, 100}[len(s.told)%12]
	s.told = append(s.told, served{watts, time.Now()})
	fixed(fmt.Sprintf("power{uuid=%q} %v\n", uuid(0), watts))(w, r)
}

// truth returns all values, with the seconds since the previous value, sorted by value.
func (s *swinging) truth() (values []served, seconds []float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.told) < swings {
		return nil, nil
	}
	type weighted struct {
		served
		seconds float64
	}
	var all []weighted
	for i := 1; i < len(s.told); i++ {
		all = append(all, weighted{s.told[i], s.told[i].at.Sub(s.told[i-1].at).Seconds()})
	}
	slices.SortFunc(all, func(a, b weighted) int { return int(a.watts - b.watts) })
	for _, v := range all {
		values, seconds = append(values, v.served), append(seconds, v.seconds)
	}
	return values, seconds
}

// A Prometheus that reads native histograms and scrapes rarely gets the distribution of a claim's
// power second by second. The text format does not have it.
func TestDistributions(t *testing.T) {
	t.Parallel()
	s := &swinging{}
	url := vendor(t, s.ServeHTTP)
	n := newNode(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	common := flags{
		"inventory.file": n.inventory(gpus(1)), "source.scrape.config": n.scrapeConfig(endpoint("swinging", url)),
		"counter.zero-hold": "0s",
	}
	p := start(t, n.flags(common))
	prometheus := live.StartPrometheus(t, live.PrometheusOptions{Config: fmt.Sprintf(`
global: {scrape_interval: 5s, scrape_native_histograms: true}
scrape_configs:
- {job_name: on, honor_labels: true, static_configs: [{targets: [%q]}]}
`, p.Address)})
	ask := func(expression string) float64 {
		series := must.Get(prometheus.Query(t.Context(), expression, time.Now()))(t)
		if len(series) != 1 || len(series[0].Samples) != 1 {
			return math.NaN()
		}
		return series[0].Samples[0].Value
	}
	const power = `dra_claim_power_distribution_watts{namespace="team",resourceclaim_name="claim-a"}`
	var values []served
	var seconds []float64
	total := 0.0
	p.within(3*time.Minute, "all of the readings are in Prometheus", func() bool {
		if values, seconds = s.truth(); values == nil {
			return false
		}
		total = 0
		for _, v := range seconds {
			total += v
		}
		return math.Abs(ask("histogram_count("+power+")")-total) <= 1.5
	})
	integral := 0.0
	for i := range values {
		integral += values[i].watts * seconds[i]
	}
	if got := ask("histogram_sum(" + power + ")"); math.Abs(got-integral) > 0.03*integral {
		t.Errorf("%v J, want %v", got, integral)
	}
	for _, q := range []float64{0.3, 0.8, 0.99} {
		below, want := 0.0, 0.0
		for i := range values {
			if below += seconds[i]; below >= q*total {
				want = values[i].watts
				break
			}
		}
		if got := ask(fmt.Sprintf("histogram_quantile(%v, %s)", q, power)); !(got > want/1.1 && got < want*1.1) {
			t.Errorf("quantile %v is %v, want %v to 10 %%", q, got, want)
		}
	}
	p.scrape().wantNone("dra_claim_power_distribution_watts_count")
}
