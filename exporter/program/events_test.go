package program

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
	"github.com/dra-exporter/dra-exporter/podresources/kube/events"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// An incident causes one event for each claim and each pod that it hit, and none for other objects.
// The message is the same if the same incident happens again.
func TestEventsOf(t *testing.T) {
	holder := func(claim, pod string, hit bool) recorder.Holder {
		h := recorder.Holder{Namespace: "team", Claim: claim, Pod: pod, PodUID: "uid-" + pod, Hit: hit}
		if claim != "" {
			h.ClaimUID = "uid-" + claim
		}
		return h
	}
	at := time.Unix(1_800_000_000, 0)
	i := &recorder.Incident{
		ID: "1", Kind: recorder.XID, Code: "79", Text: "gpu-0: XID 79", Onset: at, Last: at, Count: 2,
		Device: driver.ID{Driver: "gpu.example.com", Pool: "node-1", Device: "gpu-0"},
		Holders: []recorder.Holder{
			holder("train", "a", true), holder("train", "b", true), holder("other", "c", false), holder("", "plugin", true),
		},
	}
	type row struct {
		events.Object
		reason string
		times  int
		at     time.Time
	}
	var got []row
	before := map[events.Object]string{}
	for _, e := range eventsOf("node-1", i, 2) {
		got = append(got, row{e.Object, e.Reason, e.Times, e.At})
		before[e.Object] = e.Message
	}
	want := []row{
		{events.Object{Kind: "ResourceClaim", Namespace: "team", Name: "train", UID: "uid-train"}, "DeviceXID", 2, at},
		{events.Object{Kind: "Pod", Namespace: "team", Name: "a", UID: "uid-a"}, "DeviceXID", 2, at},
		{events.Object{Kind: "Pod", Namespace: "team", Name: "b", UID: "uid-b"}, "DeviceXID", 2, at},
		{events.Object{Kind: "Pod", Namespace: "team", Name: "plugin", UID: "uid-plugin"}, "DeviceXID", 2, at},
	}
	expect.Equal(t, "events", want, got, cmp.AllowUnexported(row{}))
	const message = "gpu-0: XID 79 (gpu.example.com/node-1/gpu-0, through claim train): " +
		"its course and what was recorded are in /api/v1/incidents of dra-exporter on node node-1"
	expect.Equal(t, "the message", message, before[want[1].Object])
	end := at.Add(time.Hour)
	over := *i
	over.End, over.Resolution = &end, recorder.Quiet
	for n, e := range eventsOf("node-1", &over, 0) {
		const text = "over (not again for ten minutes, and the device is readable and healthy): "
		if e.Object != want[n].Object || e.Reason != "DeviceXIDResolved" || !e.Normal || e.At != end || e.Times != 1 ||
			e.Message != text+before[e.Object] {
			t.Errorf("of its end the event is %+v", e)
		}
	}
	i.Holders[1].Possible, i.NotBefore = true, i.Onset.Add(-5*time.Second)
	between := "possibly hit between " + present.Clock(i.NotBefore) + " and " + present.Clock(i.Onset) + " by gpu-0"
	for _, e := range eventsOf("node-1", i, 1) {
		expect.That(t, e.Name == "b" == strings.HasPrefix(e.Message, between), "of %s it says %q", e.Name, e.Message)
	}
	i.Holders[1].Possible = false
	again := *i
	again.ID, again.Onset, again.Last, again.Count = "2", at.Add(time.Hour), at.Add(time.Hour), 7
	for _, e := range eventsOf("node-1", &again, 1) {
		expect.That(t, e.Message == before[e.Object], "the same again says %q, before %q", e.Message, before[e.Object])
	}
}

// Each kind of incident has its own reason, in the format of the API conventions.
func TestReasons(t *testing.T) {
	seen := map[string]bool{}
	for _, kind := range recorder.Kinds() {
		reason := reasonOf(kind)
		if !regexp.MustCompile(`^([A-Z][A-Za-z]+){2,}$`).MatchString(reason) || reason == reasonOf("") || seen[reason] {
			t.Errorf("the reason of %s is %s", kind, reason)
		}
		seen[reason] = true
	}
}

// use is how much of the full budget a part of the program may use, in bytes.
type use struct {
	part  string
	bytes int
}

// uses returns the use of maxResident by each part. exporter/README.md describes what is dropped
// above it. With less memory, all parts but the first are reduced by the same factor.
func uses() []use {
	full := podresources.FullBounds()
	return []use{
		{"the program itself", fixed},
		{"an answer of the kubelet, as it is read", full.Answer},
		{"the pods of it that are kept", full.Bytes},
		{"rows, from the join to the page", full.Rows * rowBytes},
		{"who held what in the last ten minutes", ledger.MaxHistory},
		{"the flight recorder", recorder.MaxBytes},
		{"answers to readers", web.MaxAnswers},
		{"slices of the API server", 2 * kube.MaxSliceBytes},
	}
}

// The parts sum to the whole budget, and are equal to the documented ones.
func TestMemoryParts(t *testing.T) {
	documented := must.Get(os.ReadFile("../README.md"))(t)
	sum := 0
	for _, u := range uses() {
		sum += u.bytes
		if row := fmt.Sprintf("| %s | %d MiB", u.part, u.bytes>>20); !bytes.Contains(documented, []byte(row)) {
			t.Errorf("README.md has no row %q", row)
		}
	}
	expect.That(t, sum == maxResident, "the parts are %.1f MiB together, want %d", float64(sum)/(1<<20), maxResident>>20)
}

// With less memory than the budget, all parts but the program itself are reduced by the same
// factor. The heap is limited to what the file pages leave.
func TestMemoryShares(t *testing.T) {
	for name, c := range map[string]struct {
		limit, heap         int64
		rows, ring          int
		series, unlimited   int // with the flag at 50 000, and at 0
		seriesOfFew, answer int // with the flag at 100
	}{
		"no limit": {
			limit: math.MaxInt64, heap: 117021078, rows: 4096, ring: 12 << 20, series: 50_000, seriesOfFew: 100,
			answer: 40 << 20,
		},
		"100 MiB": {
			limit: 100 << 20, heap: 60397974, rows: 1238, ring: 3804136, series: 29719, unlimited: 29719, seriesOfFew: 100,
			answer: 12680453,
		},
		"less than the program": {
			limit: 20 << 20, heap: 20761803, rows: 256, ring: 768 << 10, series: 6144, unlimited: 6144, seriesOfFew: 100,
			answer: 2560 << 10,
		},
	} {
		m := newMemory(c.limit)
		bounds := podresources.FullBounds().Times(m.share)
		if got := m.heap(); got != c.heap {
			t.Errorf("%s: the heap has %d bytes, want %d", name, got, c.heap)
		}
		if bounds.Rows != c.rows || bounds.Answer != c.answer || m.of(recorder.MaxBytes) != c.ring {
			t.Errorf("%s: %d rows, %d bytes of an answer, %d bytes of the recorder, want %d, %d, %d", name,
				bounds.Rows, bounds.Answer, m.of(recorder.MaxBytes), c.rows, c.answer, c.ring)
		}
		for flag, want := range map[int]int{50_000: c.series, 0: c.unlimited, 100: c.seriesOfFew} {
			if got := m.series(flag); got != want {
				t.Errorf("%s: %d series with --max-series=%d, want %d", name, got, flag, want)
			}
		}
	}
}
