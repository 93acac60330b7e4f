package recorder

import (
	"math"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The last minutes of a device are means over equal periods of its most informative quantity. Its
// traffic is that of the last ten seconds over all links, whenever it is read.
func TestRecent(t *testing.T) {
	ids := map[string]driver.ID{}
	s := &book.Snapshot{Time: time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)}
	add := func(name string, series ...book.Series) {
		id := driver.ID{Driver: "example.com", Pool: "pool", Device: name}
		d := book.Device{Device: &join.Device{ID: id}, Key: &id}
		ids[name] = id
		for i := range series {
			d.Values = append(d.Values, book.Value{Series: &series[i]})
		}
		s.Devices = append(s.Devices, d)
	}
	bytes := func(link, direction string) book.Series {
		return book.Series{Quantity: driver.IOBytes, Labels: driver.Labels{link, direction}}
	}
	power := book.Series{Quantity: driver.Power}
	add("gpu", power, book.Series{Quantity: driver.Utilization}, bytes("pcie", "receive"))
	add("old", power)
	add("nic", bytes("network", "receive"), bytes("rdma", "transmit"))
	r := New(Config{Interval: time.Second})
	for second := range 121 {
		next := *s
		next.Time = s.Time.Add(time.Duration(second) * time.Second)
		next.Devices = nil
		for _, d := range s.Devices {
			values := d.Values
			d.Values = nil
			for _, v := range values {
				switch v.Quantity {
				case driver.Utilization:
					v.Value = float64(min(1, second/60)) // busy in the second minute
				case driver.Power:
					v.Value = 70
				default:
					v.Value = 1000*float64(second) + 2000*float64(max(0, second-110)) // three times as fast at the end
				}
				d.Values = append(d.Values, v)
			}
			next.Devices = append(next.Devices, d)
		}
		r.Record(&next)
	}
	got := r.Recent(4*time.Minute, 8)
	of := func(name string) Recent { return got[Owner{Kind: OfDevice, Device: ids[name]}] }
	gpu := of("gpu")
	if gpu.Quantity != driver.Utilization || len(gpu.Values) != 8 || !math.IsNaN(gpu.Values[3]) || gpu.Values[4] != 0 ||
		gpu.Values[7] != 1 || !math.IsNaN(gpu.Traffic) {
		t.Errorf("the GPU is %+v", gpu)
	}
	old := of("old")
	expect.That(t, old.Quantity == driver.Power && old.Values[7] == 70, "one without utilization is %+v", old)
	nic := of("nic")
	expect.That(t, nic.Quantity == driver.IOBytes && math.Abs(nic.Traffic-6000) <= 1, "the NIC is %+v", nic)
	want := map[Owner]float64{{Kind: OfDevice, Device: ids["nic"]}: of("nic").Traffic}
	expect.Equal(t, "traffic", want, r.Traffic())
}

// An incident that another process knew has happened as often as that process knew, also where its
// document does not have it yet, and not less often than its document has.
func TestTallies(t *testing.T) {
	at := time.Unix(1_800_000_000, 0).UTC()
	incident := func(id string, count int, last time.Time) *Incident {
		return &Incident{ID: id, Kind: XID, Onset: at, Detected: at, Last: last, Count: count}
	}
	r := New(Config{Interval: time.Second})
	now := at.Add(time.Hour)
	r.Restore([]*Incident{incident("a", 7, now.Add(-time.Second)), incident("b", 9, at), incident("c", 3, now)})
	r.publish(now)
	state := r.Tallies()
	again := r.Tallies()
	expect.That(t, string(state) == string(again), "nothing has changed, and the tallies are %s after %s", again, state)
	next := New(Config{Interval: time.Second})
	next.Restore([]*Incident{incident("a", 5, at), incident("b", 9, at), incident("c", 4, now)})
	must.Do(t, next.RestoreTallies(state))
	for id, want := range map[string]int{"a": 7, "b": 9, "c": 4} {
		i := next.Incident(id)
		expect.That(t, i.Count == want && (id != "a" || i.Last.Equal(now.Add(-time.Second))),
			"%s has happened %d times, last %v, want %d", id, i.Count, i.Last, want)
	}
	expect.That(t, next.RestoreTallies([]byte("?")) != nil, "a damaged state is no error")
}

func TestMain(m *testing.M) { exportertest.Main(m) }
