package exporter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/invariant"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Invariant 1: whatever happens, the claims' parts and the unattributed part sum to the device's
// value, and the pods' parts to the claims'. Invariant 5: no counter falls. The report and the
// metrics of each snapshot pass the checks of the system tests. The retention is longer than a
// history, so that nothing is dropped. It does not matter how much is kept of who held what.
func TestConservation(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := exportertest.NewWorld(t)
		config := exportertest.LedgerConfig()
		config.Retention = 24 * time.Hour
		config.History = rapid.SampledFrom([]int{0, 1}).Draw(t, "history")
		l := ledger.New(config)
		shown := exposition.Config{Choices: exportertest.Everything()}
		shown.Choices[exposition.GroupHistograms] = exposition.Off
		limiter := exposition.NewLimiter(0, shown.Choices)
		reports := invariant.Checker{Settled: config.Retention} // readings may come late
		var scrapes invariant.Exposition
		for range rapid.IntRange(3, exportertest.Steps).Draw(t, "steps") {
			w.Step(exportertest.Pauses())
			s := limiter.Apply(nil, l.Advance(join.Join(w.Input()), w.Now))
			var out bytes.Buffer
			must.Do(t, present.WriteReport(&out, s, present.Config{Node: "node1", QuietAfter: time.Minute}))
			var report present.Report
			must.Do(t, json.Unmarshal(out.Bytes(), &report))
			parser := expfmt.NewTextParser(model.UTF8Validation)
			text := exportertest.Encode(t, exportertest.Render(s, shown), expfmt.NewFormat(expfmt.TypeTextPlain))
			families := must.Get(parser.TextToMetricFamilies(strings.NewReader(text)))(t)
			if wrong := append(reports.Check(&report), scrapes.Check(families)...); len(wrong) > 0 {
				t.Fatalf("tick %d: %v", w.Tick, errors.Join(wrong...))
			}
		}
	})
}

// Invariant 2: an admin claim is listed and has nothing.
func TestAdminOwnsNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		everOwner := map[string]bool{}
		// the pods of each share at the tick before: they may have owned it in between
		before := map[string][]podresources.Pod{}
		exportertest.Replay(t, func(w *exportertest.World, r join.Result, s *exposition.Snapshot) {
			x := exportertest.Scrape(t, s)
			for _, share := range r.Ended { // it may have been in no tick
				if !share.Admin {
					everOwner["resourceclaim_name="+share.Claim.Name+share.Device.String()] = true
					for _, p := range share.Pods {
						everOwner["pod="+p.Name+share.Device.String()] = true
					}
				}
			}
			listed := 0
			for _, d := range r.Devices {
				weight, owners := 0.0, 0
				for _, share := range d.Shares {
					if !share.Admin {
						owners++
						everOwner["resourceclaim_name="+share.Claim.Name+d.ID.String()] = true
						for _, p := range slices.Concat(share.Pods, before[d.ID.String()+share.Claim.Name+share.ShareID]) {
							everOwner["pod="+p.Name+d.ID.String()] = true
						}
					} else {
						listed++
						must.That(t, share.Weight == 0, "an admin claim has the weight %v", share.Weight)
					}
					weight += share.Weight
					before[d.ID.String()+share.Claim.Name+share.ShareID] = share.Pods
				}
				if owners > 0 && !exportertest.Close(weight, 1, 0) {
					t.Fatalf("the weights of %v sum to %v", d.ID, weight)
				}
				if got := x.One(t, "dra_device_allocations", "device="+d.ID.Device); got != float64(owners) {
					t.Fatalf("%v has %v allocations, want %d", d.ID, got, owners)
				}
			}
			if got := len(x.Matching("dra_claim_device_info", "admin_access=true", "attribution=")); got != listed {
				t.Fatalf("%d admin claims are listed, want %d", got, listed)
			}
			for _, h := range slices.Concat(s.Claims, s.Pods) {
				kind := "pod="
				if slices.ContainsFunc(s.Claims, func(c book.Holder) bool { return c.Name == h.Name }) {
					kind = "resourceclaim_name="
				}
				must.That(t, everOwner[kind+h.Name+h.Device.String()], "%s%s never owned %v and has a row", kind, h.Name, h.Device)
			}
		})
	})
}

// Invariant 3: a device's value, and a holder's gauge, are there if, and only if, a source read
// them at this tick; a holder's counter only if it was read while, or after, the holder came.
func TestAbsentStaysAbsent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		readSince := map[string]bool{} // holder, device and quantity
		exportertest.Replay(t, func(w *exportertest.World, r join.Result, s *exposition.Snapshot) {
			in := w.Input()
			x := exportertest.Scrape(t, s)
			for i := range s.Devices {
				d := &s.Devices[i]
				read, ofParent := readQuantities(in, d.Device), map[driver.Quantity]bool{}
				zero := readsNoEnergy(in, d.Device)
				for j := range r.Devices {
					if r.Devices[j].ID == w.ParentOf(d.ID) {
						ofParent = readQuantities(in, &r.Devices[j])
					}
				}
				for q := range driver.Capacity {
					got := len(x.Matching("dra_device_"+q.Spec().Metric, "device="+d.ID.Device)) > 0
					want := read[q] || q == driver.ActiveSeconds && read[driver.Utilization]
					if q == driver.Energy && (read[driver.Power] && !read[q] || zero) {
						continue // an integral stands in, or not; a count that was never above 0 is none
					}
					must.That(t, got == want, "%v: %v is there: %v, was read: %v", d.ID, q, got, want)
				}
				if up := x.Matching("dra_device_up", "device="+d.ID.Device); len(up) > 0 && !zero &&
					x.One(t, "dra_device_up", "device="+d.ID.Device) == 1 != (len(read) > 0) {
					t.Fatalf("%v: up is %v, and %d quantities were read", d.ID, up, len(read))
				}
				for q := range read {
					readSince[fmt.Sprint(d.ID, q)] = true
				}
				for _, h := range slices.Concat(s.Claims, s.Pods) {
					if h.Device != d.ID {
						continue
					}
					for _, v := range h.Values {
						key := fmt.Sprint(h.Name, h.Device, v.Quantity)
						of, keeps := peakOf(v.Quantity)
						read := read
						if of.Spec().Divided && d.Parent != "" {
							read = ofParent
						}
						readNow := read[of] || of == driver.ActiveSeconds && read[driver.Utilization] ||
							of == driver.Energy && read[driver.Power]
						if keeps { // while it was not known yet whether it holds the device, too
							key = fmt.Sprint(h.Device, of)
						}
						readSince[key] = readSince[key] || readNow
						must.That(t, (of.Spec().Type != driver.Gauge || readNow || keeps) && (readSince[key] || v.Value != 0),
							"%s has %v = %v of %v, which was not read", h.Name, v.Quantity, v.Value, h.Device)
					}
				}
			}
		})
	})
}

// peakOf returns the quantity whose peak q is, else q.
func peakOf(q driver.Quantity) (of driver.Quantity, is bool) {
	for of := range driver.NumQuantities {
		if name := of.Spec().Peak; name != "" && name == q.String() {
			return of, true
		}
	}
	return q, false
}

// readsNoEnergy reports whether a source's energy counter of a device shows 0 now.
func readsNoEnergy(in join.Input, d *join.Device) bool {
	for _, s := range in.Sources {
		for _, sample := range s.Samples {
			for _, r := range sample.Readings {
				if sample.Hardware.UUID == d.Entry.UUID && r.Quantity == driver.Energy && r.Value == 0 {
					return true
				}
			}
		}
	}
	return false
}

func readQuantities(in join.Input, d *join.Device) map[driver.Quantity]bool {
	out := map[driver.Quantity]bool{}
	for _, s := range in.Sources {
		for _, sample := range s.Samples {
			if _, listed := in.Inventory[d.ID]; listed && sample.Hardware.UUID == d.Entry.UUID {
				for _, r := range sample.Readings {
					out[r.Quantity] = true
				}
			}
		}
	}
	return out
}

// Invariant 4: the order of inputs changes nothing.
func TestOrderChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		shuffle := func(w *exportertest.World, in *join.Input) {
			in.View.Allocations = rapid.Permutation(in.View.Allocations).Draw(t, "allocations")
			for i := range in.Sources {
				s := &in.Sources[i]
				s.Samples = rapid.Permutation(s.Samples).Draw(t, "samples")
				for j := range s.Samples {
					s.Samples[j].Readings = rapid.Permutation(s.Samples[j].Readings).Draw(t, "readings")
					s.Samples[j].Processes = rapid.Permutation(s.Samples[j].Processes).Draw(t, "processes")
				}
			}
		}
		exportertest.Twins(
			t, shuffle, func(_, _ join.Result, texts [2]string) { exportertest.SameText(t, texts[0], texts[1]) },
		)
	})
}

// isOfDriver reports whether a line is of all claims of a driver.
func isOfDriver(line string) bool {
	return strings.HasPrefix(line, "dra_claim_preparation_seconds") ||
		strings.HasPrefix(line, "dra_claim_first_activity_seconds")
}

// Invariant 4: a change on one device changes nothing on the others.
func TestLocality(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		other := podresources.Claim{Namespace: "other", Name: "other"}
		add := func(w *exportertest.World, in *join.Input) {
			extra := driver.ID{Driver: "nic.example.com", Pool: "node1", Device: "extra"}
			in.Inventory[extra] = driver.Entry{Hardware: driver.Hardware{UUID: "NIC-0"}}
			holder := podresources.Holder{
				Pod: podresources.Pod{Namespace: "other", Name: "other"}, Container: "main", UID: "uid",
			}
			for _, id := range []driver.ID{extra, jointest.ID("gpu-0")} {
				if w.Tick%3 > 0 {
					in.View.Allocations = append(
						in.View.Allocations, podresources.Allocation{Claim: other, Device: id, Holders: []podresources.Holder{holder}},
					)
				}
			}
			in.View.Allocations = jointest.Held(in.View.Allocations...)
			in.Sources[0].Samples = append(in.Sources[0].Samples, driver.Sample{
				Hardware: driver.Hardware{UUID: "NIC-0"}, Readings: []driver.Reading{{Quantity: driver.Power, Value: 7, At: w.Now}},
			})
		}
		// The claims that ever held gpu-0 or a part of it, whose own rows end before their distributions.
		held := map[string]bool{}
		others := func(text string) string {
			var out strings.Builder
			for line := range strings.Lines(text) {
				claim, distribution := strings.CutPrefix(claimOf(line), "distribution of ")
				if distribution && holds(text, claim, `device="gpu-0`) {
					held[claim] = true
				}
				touched := distribution && held[claim] ||
					strings.HasPrefix(line, "dra_claim_info") || strings.HasPrefix(line, "dra_pod_info") ||
					isOfDriver(line) ||
					strings.Contains(line, `device="extra"`) ||
					strings.Contains(line, `device="gpu-0"`) || strings.Contains(line, `"other"`) ||
					// its partitions, whose parts of its energy are rounded where it changes hands
					strings.Contains(line, `device="gpu-0-part-`) && strings.Contains(line, "_energy_joules_total{")
				if !touched && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "dra_exporter_") {
					out.WriteString(line)
				}
			}
			return out.String()
		}
		exportertest.Twins(
			t, add, func(_, _ join.Result, texts [2]string) { exportertest.SameText(t, others(texts[0]), others(texts[1])) },
		)
	})
}

// claimOf returns the claim of a line of the text format; that of a distribution, which has no
// device, as "distribution of" it.
func claimOf(line string) string {
	_, rest, _ := strings.Cut(line, `resourceclaim_name="`)
	claim, _, _ := strings.Cut(rest, `"`)
	if strings.Contains(line, "_distribution_") {
		return "distribution of " + claim
	}
	return claim
}

// holds reports whether a claim was ever charged for a device.
func holds(text, claim, device string) bool {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "dra_claim_allocated_seconds_total{") && claimOf(line) == claim &&
			strings.Contains(line, device) {
			return true
		}
	}
	return false
}

// checkInfos compares the rows about holders with the kubelet's answer.
func checkInfos(t *rapid.T, r join.Result, x exportertest.Scraped) {
	t.Helper()
	shares, holders := 0, 0
	for _, d := range r.Devices {
		for _, s := range d.Shares {
			holders += len(s.Holders)
			if s.ByPlugin() {
				continue
			}
			shares++
			if len(x.Matching(
				"dra_claim_device_info", "resourceclaim_name="+s.Claim.Name, "device="+d.ID.Device, "share_id="+s.ShareID,
				"attribution="+attributionOf(&d, &s),
			)) != 1 {
				t.Fatalf("%s is not listed with %v", s.Claim.Name, d.ID)
			}
		}
	}
	if got := len(x["dra_claim_device_info"]); got != shares {
		t.Fatalf("%d shares are listed, want %d", got, shares)
	}
	if got := len(x["dra_pod_claim_info"]); got != holders {
		t.Fatalf("%d holders are listed, want %d", got, holders)
	}
}

func attributionOf(d *join.Device, s *join.Share) string {
	if s.Admin {
		return ""
	}
	return string(d.Attribution)
}

// Invariant 6: when a holder ends, its gauges and its rows about holders disappear. Its counters
// and peaks stay with all charges, and so do the rows with its identity.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ends := map[string]map[string]float64{} // the values of holders that have ended
		exportertest.Replay(t, func(w *exportertest.World, r join.Result, s *exposition.Snapshot) {
			x := exportertest.Scrape(t, s)
			shown := map[string]bool{}
			must.That(t, !slices.ContainsFunc(s.Claims, func(h book.Holder) bool { return h.Name == "" }),
				"what a device plugin gave is a claim")
			for _, h := range slices.Concat(s.Claims, s.EarlierClaims, s.Pods, s.EarlierPods) {
				key := h.Namespace + "/" + h.Name + " " + h.Device.String() + h.Born.String()
				shown[key] = true
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
			maps.DeleteFunc(ends, func(key string, _ map[string]float64) bool { return !shown[key] })
			checkInfos(t, r, x)
		})
	})
}
