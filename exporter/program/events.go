package program

import (
	"cmp"
	"slices"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
	"github.com/dra-exporter/dra-exporter/podresources/kube/events"
)

// maxObjects limits the pods and claims of one incident that get an event: a claim may have 256
// pods.
const maxObjects = 32

// newEvents returns the writer of events, and the function that receives incidents.
func newEvents(
	node string, api *kube.Client, metrics *exporter.SelfMetrics,
) (*events.Writer, func(*recorder.Incident, int)) {
	for _, result := range events.Results() {
		metrics.Event(string(result), 0)
	}
	writer := events.New(events.Config{
		API: api, Node: node,
		Count: func(r events.Result) { metrics.Event(string(r), 1) }, State: metrics.EventSent,
	})
	return writer, func(i *recorder.Incident, times int) {
		all := eventsOf(node, i, times)
		few := all[:min(len(all), maxObjects)]
		writer.Write(few...)
		metrics.Event(string(driver.ReasonTooMany), len(all)-len(few))
	}
}

// eventsOf returns the events for the claims and then the pods that an incident hit, or may have
// hit. times is the number of occurrences; 0: the incident is over.
func eventsOf(node string, i *recorder.Incident, times int) []events.Event {
	var out []events.Event
	add := func(kind, name, uid string, h *recorder.Holder) {
		object := events.Object{Kind: kind, Namespace: h.Namespace, Name: name, UID: uid}
		if name == "" || slices.ContainsFunc(out, func(e events.Event) bool { return e.Object == object }) {
			return
		}
		e := events.Event{
			Object: object, Reason: reasonOf(i.Kind), Message: present.EventText(node, i, h, kind == events.Pod), At: i.Last,
			Times: times,
		}
		if times == 0 {
			e.Reason, e.Normal, e.At, e.Times = e.Reason+"Resolved", true, *i.End, 1
		}
		out = append(out, e)
	}
	var holders, possible []recorder.Holder
	for _, h := range i.Holders {
		switch {
		case h.Hit && h.Possible:
			possible = append(possible, h)
		case h.Hit:
			holders = append(holders, h)
		}
	}
	holders = append(holders, possible...)
	for n := range holders {
		add(events.ResourceClaim, holders[n].Claim, holders[n].ClaimUID, &holders[n])
	}
	for n := range holders {
		add(events.Pod, holders[n].Pod, holders[n].PodUID, &holders[n])
	}
	return out
}

// reasonOf returns the reason field of an event about an incident.
func reasonOf(kind recorder.Kind) string {
	return cmp.Or(map[recorder.Kind]string{
		recorder.XID: "DeviceXID", recorder.ECCUncorrected: "DeviceECCUncorrected", recorder.RAS: "DeviceRAS",
		recorder.NoExecuteTaint: "DeviceNoExecuteTaint", recorder.LinkDown: "DeviceLinkDown",
		recorder.DeviceLost: "DeviceLost", recorder.Unhealthy: "DeviceUnhealthy",
		recorder.ClaimEndsInError: "ClaimEndedInError", recorder.ClaimStalled: "ClaimStalled",
		recorder.SourceDown: "TelemetrySourceDown", // hits no pod
	}[kind], "DeviceIncident")
}
