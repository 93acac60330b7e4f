package dashboards

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// server is the Prometheus of the test.
type server struct{ live.Prometheus }

// query evaluates an expression at the present time, or over a span before it in steps of two
// seconds.
func (s server) query(expr string, span time.Duration) ([]live.Series, error) {
	now := time.Now()
	if span > 0 {
		return s.QueryRange(context.Background(), expr, now.Add(-span), now, 2*time.Second)
	}
	return s.Query(context.Background(), expr, now)
}

// firing returns the firing alerts of one cluster, as NAME NAMESPACE/CLAIM, with their annotations.
func (s server) firing(t *testing.T, cluster string) map[string]map[string]string {
	var data struct {
		Alerts []struct {
			State               string
			Labels, Annotations map[string]string
		}
	}
	must.Do(t, s.Get(t.Context(), "/api/v1/alerts", nil, &data))
	out := map[string]map[string]string{}
	for _, a := range data.Alerts {
		if a.State == "firing" && a.Labels["cluster"] == cluster {
			out[strings.TrimSpace(a.Labels["alertname"]+" "+a.Labels["namespace"]+"/"+
				cmp.Or(a.Labels["resourceclaim_name"], a.Labels["pod"]))] = a.Annotations
		}
	}
	return out
}
