package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/simnode"
)

// summary is the exporter's view of the demo.
type summary struct {
	played                int // pods
	devices, claims, pods int // joined with telemetry
	held                  int // devices
	series                int
	joules, podJoules     float64 // of all devices and of pods, in joules, as the exporter reports it
	truth                 float64 // joules that the devices used in that time
}

// String returns the summary, one fact per line.
func (s summary) String() string {
	return fmt.Sprintf(`  pods simulated  %d
  joined          %d devices (%d of them held), %d claims, %d pods
  energy          %.1f kJ by the exporter, %.1f kJ simulated; %.1f kJ of it used by pods
  series          %d
`, s.played, s.devices, s.held, s.claims, s.pods, s.joules/1e3, s.truth/1e3, s.podJoules/1e3, s.series)
}

// used returns the joules that the devices have used so far.
func used(node *simnode.Node, at time.Time) float64 {
	sum := 0.0
	for _, id := range node.Devices() {
		sum += node.Total(id, at).Joules
	}
	return sum
}

// summarize gets the exporter's snapshot. before is the energy, in joules, that the devices had
// used when the exporter started.
func summarize(ctx context.Context, listen string, node *simnode.Node, before float64) (summary, error) {
	r, err := fetch(ctx, "http://"+listen+"/api/v1/snapshot")
	if err != nil {
		return summary{}, err
	}
	s := summary{played: node.Played(), series: r.Series, truth: used(node, r.Time) - before}
	for _, d := range r.Devices {
		if len(d.Values) == 0 {
			continue
		}
		s.devices++
		s.joules += energy(d.Values)
		if d.Attribution != "" {
			s.held++
		}
	}
	s.claims, _ = joined(r.Claims)
	s.pods, s.podJoules = joined(r.Pods)
	return s, nil
}

func fetch(ctx context.Context, url string) (present.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var r present.Report
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return r, fmt.Errorf("get snapshot: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return r, fmt.Errorf("get snapshot: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return r, fmt.Errorf("get snapshot: %s", response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(&r); err != nil {
		return r, fmt.Errorf("decode snapshot: %w", err)
	}
	return r, nil
}

// joined returns the number of claims, or pods, that have telemetry, and the energy of all.
func joined(rows []present.HolderReport) (int, float64) {
	names, joules := map[[2]string]bool{}, 0.0
	for _, row := range rows {
		if len(row.Values) > 0 {
			names[[2]string{row.Namespace, row.Name}] = true
		}
		joules += energy(row.Values)
	}
	return len(names), joules
}

func energy(values []present.ValueReport) float64 {
	sum := 0.0
	for _, v := range values {
		if v.Quantity == driver.Energy.String() {
			sum += v.Value
		}
	}
	return sum
}
