package recorder

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/xid"
)

// Kind is what happened to a device, a claim or a source.
type Kind string

// The kinds of incidents. Errors have the kinds of the error counter.
const (
	XID              Kind = "xid"
	ECCUncorrected   Kind = "ecc_uncorrected"
	RAS              Kind = "ras"
	LinkDown         Kind = "link_down"
	DeviceLost       Kind = "device_lost" // it can't be read, and further evidence says that it is lost
	NoExecuteTaint   Kind = "no_execute_taint"
	Unhealthy        Kind = "unhealthy"
	ClaimEndsInError Kind = "claim_ends_in_error" // a claim ended soon after an error, or on a failed device
	ClaimStalled     Kind = "claim_stalled"       // a claim keeps its device busy and does nothing
	SourceDown       Kind = "source_down"         // a source fails as a whole
)

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{
		XID, ECCUncorrected, RAS, LinkDown, DeviceLost, NoExecuteTaint, Unhealthy, ClaimEndsInError, ClaimStalled,
		SourceDown,
	}
}

// isError reports whether incidents of the kind are errors that a counter counts.
func (k Kind) isError() bool { return slices.Contains([]Kind{XID, ECCUncorrected, RAS, LinkDown}, k) }

// codeMatters reports whether incidents of the kind with different codes are different incidents.
func (k Kind) codeMatters() bool { return k.isError() || k == NoExecuteTaint }

// ofError returns the kind of an error with these labels, "" if it is not an incident.
func ofError(labels driver.Labels) Kind {
	if k := Kind(labels[0]); k.isError() {
		return k
	}
	return ""
}

// MeaningOf returns what an error with these labels means for the holder; "": only its kind is
// known.
func MeaningOf(labels driver.Labels) string {
	if Kind(labels[0]) != XID {
		return ""
	}
	return xid.Of(labels[1], xid.Severity(labels[2])).Text()
}

// opens reports whether an error is an incident: it hits the holders of the device, and is no
// message of a test.
func opens(kind Kind, labels driver.Labels, catalogue driver.Catalogue) bool {
	message := kind == XID && xid.Of(labels[1], xid.Severity(labels[2])).Cause == xid.Nobody
	return catalogue.Spec(driver.Errors).Hits(labels) && !message
}

// Resolution is why an incident is over.
type Resolution string

// The resolutions.
const (
	Quiet      Resolution = "quiet" // no such error for ten minutes; the device is readable and healthy
	Back       Resolution = "back"  // the device is readable again, or the source answers
	Healthy    Resolution = "healthy"
	Untainted  Resolution = "untainted"
	WorksAgain Resolution = "works_again" // the claim makes progress again
	ClaimGone  Resolution = "claim_gone"
	DeviceGone Resolution = "device_gone" // the node has not had the device or the source for ten minutes
)

// Resolutions returns all resolutions.
func Resolutions() []Resolution {
	return []Resolution{Quiet, Back, Healthy, Untainted, WorksAgain, ClaimGone, DeviceGone}
}

// Meaning returns the meaning of the resolution as a clause without a full stop.
func (r Resolution) Meaning() string {
	return map[Resolution]string{
		Quiet: "not again for ten minutes, and the device is readable and healthy", Back: "it can be read again",
		Healthy: "healthy again", Untainted: "the taint is gone", WorksAgain: "the claim works again",
		ClaimGone: "the claim is gone", DeviceGone: "the node no longer has it",
	}[r]
}

// Holder is a claim and a pod that held a device. Either may be unknown.
type Holder struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim,omitempty"`
	ClaimUID  string `json:"claimUID,omitempty"`
	Pod       string `json:"pod,omitempty"`
	PodUID    string `json:"podUID,omitempty"`
	driver.ID
	Attribution string     `json:"attribution,omitempty"`
	Admin       bool       `json:"adminAccess,omitempty"`
	From        time.Time  `json:"from"`
	To          *time.Time `json:"to,omitempty"`
	// Hit reports that the incident hit the holder. An error that names a process hits only the pod of
	// the process and its claims. Anything else hits all holders without admin access.
	Hit bool `json:"hit,omitempty"`
	// Possible reports that a hit is not certain: the holder is known to have held the device only for
	// a part of the time in which the incident may have happened.
	Possible bool `json:"possible,omitempty"`
}

// same reports whether both are the same holder. A UID may have become known later.
func (h *Holder) same(other *Holder) bool {
	return h.Namespace == other.Namespace && h.Claim == other.Claim && h.Pod == other.Pod && h.ID == other.ID &&
		(h.ClaimUID == other.ClaimUID && h.PodUID == other.PodUID ||
			h.From.Equal(other.From) && sameUID(h.ClaimUID, other.ClaimUID) && sameUID(h.PodUID, other.PodUID))
}

func (h *Holder) compare(other *Holder) int {
	return cmp.Or(
		h.Compare(other.ID), strings.Compare(h.Namespace, other.Namespace), strings.Compare(h.Claim, other.Claim),
		strings.Compare(h.Pod, other.Pod), h.From.Compare(other.From),
	)
}

// Incident is something that happened to a device or a source, with a recording of the device and
// its holders. It is immutable.
type Incident struct {
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	Code string `json:"code,omitempty"`
	// Severity is what the driver says about an error of NVLink 5 or of an NVSwitch: fatal or unknown.
	Severity string    `json:"severity,omitempty"`
	Text     string    `json:"text"`             // description of what happened
	Device   driver.ID `json:"device,omitzero"`  // of all kinds except source_down
	Source   string    `json:"source,omitempty"` // of source_down
	// Onset is when it began, Detected when it was detected, Last the time of the last occurrence, and
	// Count the number of occurrences. Another occurrence for the same holders is part of the same
	// incident until its end. For kinds other than errors this includes the ten minutes after its end.
	Onset time.Time `json:"onset"`
	// NotBefore is set if the time of the first occurrence is not known exactly: it is after
	// NotBefore, and not after Onset.
	NotBefore time.Time `json:"notBefore,omitzero"`
	Detected  time.Time `json:"detected"`
	Last      time.Time `json:"last"`
	Count     int       `json:"count"`
	// End is when it was over, and Resolution why. An open incident has neither.
	End        *time.Time `json:"end,omitempty"`
	Resolution Resolution `json:"resolution,omitempty"`
	Holders    []Holder   `json:"holders"`
	// Chart is the recording, from a minute before the onset to a minute after the detection, as far
	// back as the recorder reaches. It grows until then. It is present only in an incident that is
	// requested by its ID.
	Chart *Chart `json:"recording,omitempty"`

	parent string    // of the device; "": it is not a partition
	drawn  time.Time // when the chart was last made; the zero time: never by this process
}

const (
	// evidence is the recorded time before and after an incident.
	evidence = time.Minute
	// mergeWithin is the time without another error after which an error's incident is over. For any
	// other incident, it is the time after the end in which another occurrence reopens it.
	mergeWithin = 10 * time.Minute
	// recentError is the time after an error in which a device counts as in error.
	recentError = time.Minute
	// MaxIncidents limits the number of incidents. Above it, the oldest ended incident of the device
	// with the most ended ones is removed.
	MaxIncidents = 64
	// maxEvidence limits the number of series of an incident.
	maxEvidence = 256
)

// Meaning returns what an error means for the holder; "": only its kind is known.
func (i *Incident) Meaning() string {
	return MeaningOf(driver.Labels{string(i.Kind), i.Code, i.Severity})
}

// Open reports whether the incident has not ended.
func (i *Incident) Open() bool { return i.End == nil }

// Compare orders incidents for readers: open ones first, then by the last occurrence, the newest
// first.
func (i *Incident) Compare(other *Incident) int {
	if i.Open() != other.Open() {
		if i.Open() {
			return -1
		}
		return 1
	}
	last, otherLast := i.Last.Truncate(time.Millisecond), other.Last.Truncate(time.Millisecond)
	return cmp.Or(otherLast.Compare(last), strings.Compare(other.ID, i.ID))
}

// Position is the incident's position in the order of [Incident.Compare], as a text. It falls along
// that order.
func (i *Incident) Position() string {
	open := "0"
	if i.Open() {
		open = "1"
	}
	return open + "." + timeText(i.Last) + "." + i.ID
}

// same reports whether incident is another occurrence of i.
func (i *Incident) same(other *Incident) bool {
	if i.Kind != other.Kind || i.Device != other.Device || i.Source != other.Source ||
		i.Kind.codeMatters() && (i.Code != other.Code || i.Severity != other.Severity) {
		return false
	}
	if !i.Open() && (i.Kind.isError() || other.Last.Sub(*i.End) >= mergeWithin) {
		return false
	}
	return slices.EqualFunc(i.hits(), other.hits(), (*Holder).same)
}

// hits returns the holders that were hit.
func (i *Incident) hits() (out []*Holder) {
	for n := range i.Holders {
		if h := &i.Holders[n]; h.Hit {
			out = append(out, h)
		}
	}
	return out
}

// Valid reports whether an incident from a file is valid.
func (i *Incident) Valid() bool {
	if i.ID == "" || i.Onset.IsZero() || i.Detected.Before(i.Onset) || i.Last.Before(i.Onset) || i.Count < 1 ||
		!slices.Contains(Kinds(), i.Kind) || i.Open() != (i.Resolution == "") {
		return false
	}
	return i.Chart == nil || i.Chart.valid()
}

// Pods returns the pods that the incident certainly hit, as NAMESPACE/NAME.
func (i *Incident) Pods() []string { return i.hit(false, func(h *Holder) string { return h.Pod }) }

// Claims returns the claims that the incident certainly hit, as NAMESPACE/NAME.
func (i *Incident) Claims() []string { return i.hit(false, func(h *Holder) string { return h.Claim }) }

// PossiblePods returns the pods that the incident may have hit, as NAMESPACE/NAME.
func (i *Incident) PossiblePods() []string {
	return i.hit(true, func(h *Holder) string { return h.Pod })
}

// PossibleClaims returns the claims that the incident may have hit, as NAMESPACE/NAME.
func (i *Incident) PossibleClaims() []string {
	return i.hit(true, func(h *Holder) string { return h.Claim })
}

func (i *Incident) hit(possible bool, name func(*Holder) string) []string {
	var out []string
	for n := range i.Holders {
		if h := &i.Holders[n]; h.Hit && h.Possible == possible && name(h) != "" {
			out = append(out, h.Namespace+"/"+name(h))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Subject returns the name of the device or source.
func (i *Incident) Subject() string {
	if i.Source != "" {
		return "source " + i.Source
	}
	return i.Device.String()
}

// describe returns a description of what happened.
func (i *Incident) describe() string {
	if i.Kind == SourceDown {
		return fmt.Sprintf("source %s fails: %s", i.Source, strings.ReplaceAll(i.Code, "_", " "))
	}
	what := map[Kind]string{
		XID: xid.Name(i.Code, xid.Severity(i.Severity)), ECCUncorrected: "uncorrectable ECC error",
		RAS: "RAS error", LinkDown: "link down", DeviceLost: "lost: " + lossText(i.Code),
		NoExecuteTaint: "tainted: " + i.Code, Unhealthy: "reported as unhealthy",
		ClaimEndsInError: "a claim ended while the device was in error", ClaimStalled: "a claim is busy and does nothing",
	}[i.Kind]
	switch {
	case i.Code == "":
	case i.Kind == ClaimStalled: // the signals that are low
		what += " (" + strings.NewReplacer(",", ", ", "_", " ").Replace(i.Code) + ")"
	case slices.Contains([]Kind{ECCUncorrected, RAS, LinkDown}, i.Kind):
		what += " (" + i.Code + ")"
	}
	return fmt.Sprintf("%s: %s", i.Device.Device, what)
}

// timeText formats a time so that texts sort by time.
func timeText(at time.Time) string { return at.UTC().Format("20060102T150405.000") }

// newID returns an ID for an incident or receipt. IDs sort by time, and are valid file names.
func newID(at time.Time, number int) string {
	return fmt.Sprintf("%s-%03d", timeText(at), number%1000)
}

// bounded returns the incidents within the limit. It modifies all.
func bounded(all []*Incident) []*Incident {
	for len(all) > MaxIncidents {
		over := slices.ContainsFunc(all, func(i *Incident) bool { return !i.Open() })
		count := map[driver.ID]int{}
		for _, i := range all {
			count[i.Device]++
		}
		first := -1
		for n, i := range all {
			if over && i.Open() {
				continue
			}
			if first < 0 || count[i.Device] > count[all[first].Device] {
				first = n
			}
		}
		all = slices.Delete(all, first, first+1)
	}
	return all
}
