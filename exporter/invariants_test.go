package exporter

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

const testRetention = 5 * time.Minute

func testConfig() LedgerConfig {
	return LedgerConfig{Retention: testRetention, IdleThreshold: 0.01, NetworkThreshold: 1e4}
}

const testSteps = 30

// replay runs a random history through a ledger and calls check after each tick.
func replay(t *rapid.T, config LedgerConfig, check func(w *world, r Result, s *Snapshot)) {
	w := newWorld(t)
	l := NewLedger(config)
	for range rapid.IntRange(3, testSteps).Draw(t, "steps") {
		w.step(pauses())
		r := Join(w.input())
		check(w, r, l.Advance(r, w.now))
	}
}

// close to 1e-9 of the larger, or of the size of what the sum was made of.
func closeTo(a, b, size float64) bool {
	return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b), size)
}

// Invariant 1: whatever happens, the claims' parts and nobody's sum to the device's, and the pods' to the claims'; and 5:
// no counter falls.
func TestConservation(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		books := map[sumKey]*conservation{}
		born := map[string]time.Time{}
		replay(t, testConfig(), func(w *world, _ Result, s *Snapshot) {
			claims, pods := births(slices.Concat(s.Claims, s.Plugins)), births(s.Pods)
			for _, d := range s.Devices {
				if id := d.ID.String(); !born[id].Equal(d.Born) { // away for so long that it was forgotten
					maps.DeleteFunc(books, func(key sumKey, _ *conservation) bool { return key.device == id })
					born[id] = d.Born
				}
			}
			sums := scrape(t, s).sums()
			addPlugins(sums, s.Plugins)
			for key, p := range sums {
				if books[key] == nil {
					books[key] = &conservation{claims: newCharges(), pods: newCharges()}
				}
				books[key].check(t, key, p, claims, pods)
			}
		})
	})
}

// births are the times at which the holders of devices were born: by them one that is shown again is told from one that is
// new under its name.
func births(rows []HolderSnapshot) map[[2]string]time.Time {
	out := map[[2]string]time.Time{}
	for _, h := range rows {
		out[[2]string{h.Device.String(), h.Namespace + "/" + h.Name}] = h.Born
	}
	return out
}

// conservation follows a quantity of a device.
type conservation struct {
	device       float64
	claims, pods charges
}

// charges are what holders were charged, with those that are gone.
type charges struct {
	all  float64
	last map[string]float64
	born map[string]time.Time
}

func newCharges() charges {
	return charges{last: map[string]float64{}, born: map[string]time.Time{}}
}

func (c *conservation) check(t *rapid.T, key sumKey, p *parts, claims, pods map[[2]string]time.Time) {
	t.Helper()
	if p.gauge {
		if claims := sumOf(p.claims); !closeTo(p.device, claims+p.nobody, 0) || !closeTo(claims, sumOf(p.pods), 0) {
			t.Fatalf("%v: the device has %v, the claims %v, the pods %v, nobody %v", key, p.device, claims, sumOf(p.pods), p.nobody)
		}
		return
	}
	c.claims.rise(t, key, p.claims, claims)
	c.pods.rise(t, key, p.pods, pods)
	if key.metric == "own_allocated_seconds_total" {
		return
	}
	if !closeTo(c.claims.all, c.pods.all, p.device) {
		t.Fatalf("%v: the claims were charged %v, the pods %v", key, c.claims.all, c.pods.all)
	}
	if !p.read {
		return
	}
	if p.device < c.device {
		t.Fatalf("%v: the device's counter fell from %v to %v", key, c.device, p.device)
	}
	c.device = p.device
	if !closeTo(p.device, c.claims.all+p.nobody, 0) {
		t.Fatalf("%v: the device counted %v, the claims %v, nobody %v", key, p.device, c.claims.all, p.nobody)
	}
}

// rise notes by how much the counters rose.
func (c *charges) rise(t *rapid.T, key sumKey, now map[string]float64, births map[[2]string]time.Time) {
	t.Helper()
	for holder, v := range now {
		born := births[[2]string{key.device, holder}]
		if !c.born[holder].Equal(born) {
			c.born[holder], c.last[holder] = born, 0
		}
		if v < c.last[holder] {
			t.Fatalf("%v of %s fell from %v to %v", key, holder, c.last[holder], v)
		}
		c.all += v - c.last[holder]
		c.last[holder] = v
	}
}

// Invariant 2: an admin claim is listed and has nothing.
func TestAdminOwnsNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		everOwner := map[string]bool{}
		before := map[string][]podresources.Pod{} // the pods of each share at the tick before: they may have owned it in between
		replay(t, testConfig(), func(w *world, r Result, s *Snapshot) {
			x := scrape(t, s)
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
						if share.Weight != 0 {
							t.Fatalf("an admin claim has the weight %v", share.Weight)
						}
					}
					weight += share.Weight
					before[d.ID.String()+share.Claim.Name+share.ShareID] = share.Pods
				}
				if owners > 0 && !closeTo(weight, 1, 0) {
					t.Fatalf("the weights of %v sum to %v", d.ID, weight)
				}
				if got := x.one(t, "dra_device_allocations", "device="+d.ID.Device); got != float64(owners) {
					t.Fatalf("%v has %v allocations, want %d", d.ID, got, owners)
				}
			}
			if got := len(x.matching("dra_claim_device_info", "admin_access=true", "attribution=")); got != listed {
				t.Fatalf("%d admin claims are listed, want %d", got, listed)
			}
			for _, h := range slices.Concat(s.Claims, s.Pods) {
				kind := "pod="
				if slices.ContainsFunc(s.Claims, func(c HolderSnapshot) bool { return c.Name == h.Name }) {
					kind = "resourceclaim_name="
				}
				if !everOwner[kind+h.Name+h.Device.String()] {
					t.Fatalf("%s%s never owned %v and has a row", kind, h.Name, h.Device)
				}
			}
		})
	})
}

// Invariant 3: a device's value is there if, and only if, a source read it at this tick; a holder's gauge likewise, and a
// holder's counter only if it was read while, or after, the holder came.
func TestAbsentStaysAbsent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		readSince := map[string]bool{} // holder, device and quantity
		replay(t, testConfig(), func(w *world, r Result, s *Snapshot) {
			in := w.input()
			x := scrape(t, s)
			for i := range s.Devices {
				d := &s.Devices[i]
				read := readQuantities(in, d)
				for q := range driver.Capacity {
					got := len(x.matching("dra_device_"+q.Spec().Metric, "device="+d.ID.Device)) > 0
					want := read[q] || q == driver.ActiveSeconds && read[driver.Utilization]
					if q == driver.Energy && read[driver.Power] && !read[q] {
						continue // an integral stands in, or not
					}
					if got != want {
						t.Fatalf("%v: %v is there: %v, was read: %v", d.ID, q, got, want)
					}
				}
				if up := x.matching("dra_device_up", "device="+d.ID.Device); len(up) > 0 && x.one(t, "dra_device_up", "device="+d.ID.Device) == 1 != (len(read) > 0) {
					t.Fatalf("%v: up is %v, and %d quantities were read", d.ID, up, len(read))
				}
				for _, h := range slices.Concat(s.Claims, s.Pods) {
					if h.Device != d.ID {
						continue
					}
					for _, v := range h.Values {
						key := fmt.Sprint(h.Name, h.Device, v.Quantity)
						readNow := read[v.Quantity] || v.Quantity == driver.ActiveSeconds && read[driver.Utilization] || v.Quantity == driver.Energy && read[driver.Power]
						readSince[key] = readSince[key] || readNow
						if v.Quantity.Spec().Type == driver.Gauge && !readNow || !readSince[key] && v.Value == 0 {
							t.Fatalf("%s has %v = %v of %v, which was not read", h.Name, v.Quantity, v.Value, h.Device)
						}
					}
				}
			}
		})
	})
}

func readQuantities(in Input, d *DeviceSnapshot) map[driver.Quantity]bool {
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

// twins runs a history through two ledgers, the second with a changed input, and calls check with both texts.
func twins(t *rapid.T, change func(w *world, in *Input), check func(plain, changed Result, texts [2]string)) {
	w := newWorld(t)
	ledgers := [2]*Ledger{NewLedger(testConfig()), NewLedger(testConfig())}
	for range rapid.IntRange(3, testSteps).Draw(t, "steps") {
		w.step(pauses())
		var results [2]Result
		var texts [2]string
		for i, l := range ledgers {
			in := w.input()
			if i == 1 {
				change(w, &in)
			}
			results[i] = Join(in)
			s := l.Advance(results[i], w.now)
			scrape(t, s)
			texts[i] = text(t, s)
		}
		check(results[0], results[1], texts)
	}
}

// Invariant 4: the order of inputs changes nothing.
func TestOrderChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		shuffle := func(w *world, in *Input) {
			in.View.Allocations = rapid.Permutation(in.View.Allocations).Draw(t, "allocations")
			for i := range in.View.Allocations {
				a := &in.View.Allocations[i]
				a.Consumed = rapid.Permutation(a.Consumed).Draw(t, "consumed")
			}
			for i := range in.Sources {
				s := &in.Sources[i]
				s.Samples = rapid.Permutation(s.Samples).Draw(t, "samples")
				for j := range s.Samples {
					s.Samples[j].Readings = rapid.Permutation(s.Samples[j].Readings).Draw(t, "readings")
					s.Samples[j].Processes = rapid.Permutation(s.Samples[j].Processes).Draw(t, "processes")
				}
			}
		}
		twins(t, shuffle, func(_, _ Result, texts [2]string) { sameText(t, texts[0], texts[1]) })
	})
}

// Invariant 4: what is new on one device changes nothing of the others.
func TestLocality(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		stranger := podresources.Claim{Namespace: "other", Name: "stranger"}
		add := func(w *world, in *Input) {
			extra := driver.ID{Driver: "nic.example.com", Pool: "node1", Device: "extra"}
			in.Inventory[extra] = driver.Entry{Hardware: driver.Hardware{UUID: "NIC-0"}}
			holder := podresources.Holder{Pod: podresources.Pod{Namespace: "other", Name: "stranger"}, Container: "main", UID: "uid"}
			for _, id := range []driver.ID{extra, simID("gpu-0")} {
				if w.tick%3 > 0 {
					in.View.Allocations = append(in.View.Allocations, podresources.Allocation{Claim: stranger, Device: id, Holders: []podresources.Holder{holder}})
				}
			}
			in.Sources[0].Samples = append(in.Sources[0].Samples, driver.Sample{
				Hardware: driver.Hardware{UUID: "NIC-0"}, Readings: []driver.Reading{{Quantity: driver.Power, Value: 7, At: w.now}},
			})
		}
		others := func(text string) string {
			var out strings.Builder
			for line := range strings.Lines(text) {
				touched := strings.HasPrefix(line, "dra_claim_info") || strings.HasPrefix(line, "dra_pod_info") || strings.Contains(line, `device="extra"`) || strings.Contains(line, `device="gpu-0"`) || strings.Contains(line, `"stranger"`)
				if !touched && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "dra_exporter_") {
					out.WriteString(line)
				}
			}
			return out.String()
		}
		twins(t, add, func(_, _ Result, texts [2]string) { sameText(t, others(texts[0]), others(texts[1])) })
	})
}

func sameText(t *rapid.T, a, b string) {
	t.Helper()
	if a == b {
		return
	}
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(as), len(bs)) {
		if as[i] != bs[i] {
			t.Fatalf("line %d is\n%s\nthen\n%s", i, as[i], bs[i])
		}
	}
	t.Fatalf("%d lines became %d", len(as), len(bs))
}

// Invariant 6: when a holder ends its gauges and rows of who holds what go, its counters stay for the retention, with
// all that it was charged, and so do the rows of what it is.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type kept struct {
			ended  time.Time
			values map[string]float64
		}
		ends := map[string]kept{}
		replay(t, testConfig(), func(w *world, r Result, s *Snapshot) {
			x := scrape(t, s)
			present := map[string]bool{}
			if slices.ContainsFunc(s.Claims, func(h HolderSnapshot) bool { return h.Name == "" }) {
				t.Fatal("what a device plugin gave is a claim")
			}
			for _, h := range slices.Concat(s.Claims, s.Pods) {
				key := h.Namespace + "/" + h.Name + " " + h.Device.String()
				present[key] = true
				if h.Ended.IsZero() {
					delete(ends, key)
					continue
				}
				values := map[string]float64{}
				for _, v := range h.Values {
					if v.Quantity.Spec().Type == driver.Gauge {
						t.Fatalf("%s ended and has %v", key, v.Quantity)
					}
					values[fmt.Sprint(v.Quantity, v.Labels)] = v.Value
				}
				if _, known := ends[key]; !known {
					ends[key] = kept{ended: s.Time}
				}
				for name, was := range ends[key].values {
					if now, there := values[name]; !there || now < was {
						t.Fatalf("%s ended with %s of %v and now has %v", key, name, was, now)
					}
				}
				ends[key] = kept{ends[key].ended, values}
				infos := len(x.matching("dra_claim_info", "resourceclaim_name="+h.Name)) + len(x.matching("dra_pod_info", "pod="+h.Name))
				if infos == 0 {
					t.Fatalf("%s is kept without its info", key)
				}
			}
			for key, k := range ends {
				if !present[key] {
					if s.Time.Sub(k.ended) < testRetention-maxPause() {
						t.Fatalf("%s ended %v ago and is gone", key, s.Time.Sub(k.ended))
					}
					delete(ends, key)
				}
			}
			checkInfos(t, r, x)
		})
	})
}

// maxPause is the longest time by which an end is seen late.
func maxPause() time.Duration { return slices.Max(pauses()) }

// checkInfos holds the rows of who holds what to the kubelet's answer.
func checkInfos(t *rapid.T, r Result, x exposition) {
	t.Helper()
	shares, holders := 0, 0
	for _, d := range r.Devices {
		for _, s := range d.Shares {
			holders += len(s.Holders)
			if s.ByPlugin() {
				continue
			}
			shares++
			if len(x.matching("dra_claim_device_info", "resourceclaim_name="+s.Claim.Name, "device="+d.ID.Device, "share_id="+s.ShareID, "attribution="+attributionOf(&d, &s))) != 1 {
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

func attributionOf(d *JoinedDevice, s *Share) string {
	if s.Admin {
		return ""
	}
	return string(d.Attribution)
}

// Invariant 6, to the joule: however late the reading comes that covers a holder's last time, the holder shows it for the
// whole retention.
func TestLateChargeIsShownForTheRetention(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		last := map[string]float64{}
		rose := map[string]time.Time{}
		replay(t, testConfig(), func(w *world, r Result, s *Snapshot) {
			now := map[string]float64{}
			for key, v := range scrape(t, s)["dra_claim_energy_joules_total"] {
				now[key] = v
				if v > last[key] {
					rose[key] = s.Time
				}
			}
			for key := range last {
				if _, ok := now[key]; !ok && s.Time.Sub(rose[key]) < testRetention && !rose[key].IsZero() {
					t.Fatalf("%s rose %v ago and is gone", key, s.Time.Sub(rose[key]))
				}
			}
			last = now
		})
	})
}
