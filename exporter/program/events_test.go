package program

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources/kube/events"
	"github.com/dra-exporter/dra-exporter/test/expect"
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
