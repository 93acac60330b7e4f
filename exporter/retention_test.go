package exporter

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Invariant 6: when a holder ends, its gauges and its rows about holders disappear. Its counters
// and peaks stay with all charges, and so do the rows with its identity.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ends := map[string]map[string]float64{} // the values of holders that have ended
		exportertest.Replay(t, func(w *exportertest.World, r join.Result, s *exposition.Snapshot) {
			x := exportertest.Scrape(t, s)
			present := map[string]bool{}
			must.That(t, !slices.ContainsFunc(s.Claims, func(h book.Holder) bool { return h.Name == "" }),
				"what a device plugin gave is a claim")
			for _, h := range slices.Concat(s.Claims, s.EarlierClaims, s.Pods, s.EarlierPods) {
				key := h.Namespace + "/" + h.Name + " " + h.Device.String() + h.Born.String()
				present[key] = true
				if h.Ended.IsZero() {
					delete(ends, key)
					continue
				}
				values := map[string]float64{}
				for _, v := range h.Values {
					if s := v.Quantity.Spec(); s.Type == driver.Gauge && s.Sharing != driver.Witnessed {
						t.Fatalf("%s ended and has %v", key, v.Quantity)
					}
					values[fmt.Sprint(v.Quantity, v.Labels)] = v.Value
				}
				for name, was := range ends[key] {
					now, there := values[name]
					must.That(t, there && now >= was, "%s ended with %s of %v and now has %v", key, name, was, now)
				}
				ends[key] = values
				infos := len(
					x.Matching("dra_claim_info", "resourceclaim_name="+h.Name),
				) + len(x.Matching("dra_pod_info", "pod="+h.Name))
				must.That(t, infos != 0, "%s is kept without its info", key)
			}
			maps.DeleteFunc(ends, func(key string, _ map[string]float64) bool { return !present[key] })
			checkInfos(t, r, x)
		})
	})
}

// Invariant 6, to the joule: however late the reading comes that covers a holder's last time, the
// holder shows it for the whole retention.
func TestLateChargeIsShownForTheRetention(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		last := map[string]float64{}
		rose := map[string]time.Time{}
		exportertest.Replay(t, func(w *exportertest.World, r join.Result, s *exposition.Snapshot) {
			now := map[string]float64{}
			for key, v := range exportertest.Scrape(t, s)["dra_claim_energy_joules_total"] {
				now[key] = v
				if v > last[key] {
					rose[key] = s.Time
				}
			}
			for key := range last {
				if _, ok := now[key]; !ok && s.Time.Sub(rose[key]) < exportertest.Retention && !rose[key].IsZero() {
					t.Fatalf("%s rose %v ago and is gone", key, s.Time.Sub(rose[key]))
				}
			}
			last = now
		})
	})
}
