package dashboards

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
	"github.com/dra-exporter/dra-exporter/test/live"
)

// history is the data of the exporter's flight recorder about a claim, second by second.
type history struct {
	Times  []time.Time
	Series []struct {
		Of, Driver, Quantity string
		Values               []*float64
	}
}

// recorded returns the flight recorder's history of a claim.
func recorded(exporter, claim string) (*history, error) {
	response, err := http.Get("http://" + exporter + "/api/v1/history?claim=" + url.QueryEscape(claim))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	h := &history{}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("history of %s: %s", claim, response.Status)
	}
	return h, json.NewDecoder(response.Body).Decode(h)
}

const (
	// compared is the time over which distributions are compared with readings.
	compared = 60 * time.Second
	// allowed is the share of it by which they may differ: at both ends of the time Prometheus and
	// the recorder differ by a scrape, and buckets count whole seconds.
	allowed = 0.12
	// width is the highest ratio of the bound of a bucket to a value in it.
	width = 1.1
	// zeroBucket is the value below which values count as zero.
	zeroBucket = 1. / 1024
)

// measuredClaim is a claim's devices of a driver, with the readings of its parts.
type measuredClaim struct {
	namespace, name, driver string
	*history
	until time.Time // what was read until then was scraped
}

// measuredClaims returns the claims that hold devices.
func measuredClaims(prometheus server, exporter string) (out []measuredClaim, err error) {
	all, err := prometheus.query(`group by (namespace, resourceclaim_name, driver) (`+
		`dra_claim_device_info{cluster="honoring", admin_access="false"})`, 0)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		c := measuredClaim{namespace: s.Labels["namespace"], name: s.Labels["resourceclaim_name"], driver: s.Labels["driver"]}
		if c.history, err = recorded(exporter, c.namespace+"/"+c.name); err != nil {
			return nil, err
		}
		if len(c.Times) > 0 {
			c.until = c.Times[len(c.Times)-1].Add(-2 * time.Second)
			out = append(out, c)
		}
	}
	return out, nil
}

// readings returns the values of a quantity after one time and until another, sorted: at each time
// the sum over the devices of the driver, once for each tenth of a second since the time before.
// Times at which one is missing are left out.
func (c *measuredClaim) readings(quantity string, after, until time.Time) []float64 {
	var out []float64
	for i, at := range c.Times {
		if !at.After(after) || at.After(until) {
			continue
		}
		sum, devices := 0.0, 0
		for _, s := range c.Series {
			if s.Of != "claim" || s.Driver != c.driver || s.Quantity != quantity {
				continue
			}
			if s.Values[i] == nil {
				devices = math.MinInt
				break
			}
			sum, devices = sum+*s.Values[i], devices+1
		}
		if devices > 0 && i > 0 {
			tenths := math.Round(at.Sub(c.Times[i-1]).Seconds() * 10)
			out = append(out, slices.Repeat([]float64{sum}, int(tenths))...)
		}
	}
	slices.Sort(out)
	return out
}

// checkDistributions compares what the panels show of each claim's distributions with the readings
// of the flight recorder.
func checkDistributions(f *findings, prometheus server, exporter string, panels []grafana.Panel) {
	claims, err := measuredClaims(prometheus, exporter)
	if err != nil {
		f.Errorf("%v", err)
		return
	}
	compares, varied := 0, 0
	for i := range claims {
		c := &claims[i]
		for _, panel := range panels {
			for number, target := range panel.Targets {
				readings := c.readings(quantityOf(target.Expr), c.until.Add(-compared), c.until)
				if len(readings) < int(0.8*10*compared.Seconds()) {
					continue // it is not measured, or new
				}
				c.compare(f, prometheus, panel, number, readings)
				compares++
				if 2*readings[0] < readings[len(readings)-1] {
					varied++
				}
			}
		}
	}
	if compares < 100 || varied < 20 {
		f.Errorf("only %d comparisons, %d of them of values that vary", compares, varied)
	}
}

// quantityOf returns the quantity whose distribution an expression reads.
func quantityOf(expr string) string {
	_, rest, _ := strings.Cut(expr, "dra_claim_")
	name, _, _ := strings.Cut(rest, "_distribution_")
	return name
}

// compare compares the answer to a panel's query with the readings, which are sorted.
func (c *measuredClaim) compare(f *findings, prometheus server, panel grafana.Panel, number int, readings []float64) {
	expr := grafana.Fill(grafana.Expand(panel.Targets[number].Expr), map[string]string{
		"cluster": "honoring", "namespace": c.namespace, "claim": c.name, "driver": c.driver,
	}, "60s", "60s", "2s")
	got, err := prometheus.Query(context.Background(), expr, c.until)
	if err != nil || len(got) != 1 {
		f.Errorf("%s: %d series, error %v", expr, len(got), err)
		return
	}
	if panel.Kind == grafana.Heatmap {
		if difference := differFromReadings(got[0].Histograms, readings); difference != "" {
			f.Errorf("%s: %s; the readings are %v", expr, difference, slices.Compact(readings))
		}
		return
	}
	quantile := []float64{0.5, 0.95, 0.99}[number%3]
	low := readings[int((quantile-allowed)*float64(len(readings)-1))]
	// A second may count later than it was: the highest value may be one from before.
	all := c.readings(quantityOf(expr), time.Time{}, c.until)
	high := all[len(all)-1]
	if quantile+allowed < 1 {
		high = readings[int((quantile+allowed)*float64(len(readings)-1))]
	}
	if v := got[0].Samples[0].Value; v < low/width || v > high*width+zeroBucket {
		f.Errorf("%s is %v, and of the readings it is between %v and %v", expr, v, low, high)
	}
}

// differFromReadings describes how a heat map's column, whose cells are shares of the time, differs
// from readings, "" if it does not.
func differFromReadings(columns []live.Histogram, readings []float64) string {
	if len(columns) != 1 || math.Abs(columns[0].Count-1) > allowed {
		return fmt.Sprintf("%d columns: %v", len(columns), columns)
	}
	mean, below := 0.0, 0.0
	for _, v := range readings {
		mean += v / float64(len(readings))
	}
	if got := columns[0].Sum; math.Abs(got-mean) > allowed*readings[len(readings)-1] {
		return fmt.Sprintf("the mean is %v, that of the readings %v", got, mean)
	}
	upTo := func(bound float64) float64 { // the share of the readings
		n, _ := slices.BinarySearch(readings, math.Nextafter(bound, math.Inf(1)))
		return float64(n) / float64(len(readings))
	}
	for _, b := range columns[0].Buckets {
		below += b.Count
		const rounded = 1e-3 // the recorder's values are
		if below < upTo(b.Upper*(1-rounded))-allowed || below > upTo(b.Upper*(1+rounded))+allowed {
			return fmt.Sprintf("%v of the time is up to %v, of the readings %v", below, b.Upper, upTo(b.Upper))
		}
	}
	return ""
}
