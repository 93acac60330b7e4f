package recorder

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Kind is what happened to a device, to a claim or to a source of telemetry.
type Kind string

// The kinds of incidents. Those of errors are the kinds of the counter of errors.
const (
	XID              Kind = "xid"
	ECCUncorrected   Kind = "ecc_uncorrected"
	RAS              Kind = "ras"
	LinkDown         Kind = "link_down"
	DeviceLost       Kind = "device_lost" // it can't be read any more, and something else says that it is lost
	NoExecuteTaint   Kind = "no_execute_taint"
	Unhealthy        Kind = "unhealthy"
	ClaimEndsInError Kind = "claim_ends_in_error" // a claim ended soon after an error, or on a failed device
	ClaimStalled     Kind = "claim_stalled"       // a claim is busy and does nothing
	SourceDown       Kind = "source_down"         // a source of telemetry fails as a whole
)

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{
		XID, ECCUncorrected, RAS, LinkDown, DeviceLost, NoExecuteTaint, Unhealthy, ClaimEndsInError, ClaimStalled,
		SourceDown,
	}
}

// isError reports whether incidents of the kind are errors that a counter has counted.
func (k Kind) isError() bool { return slices.Contains([]Kind{XID, ECCUncorrected, RAS, LinkDown}, k) }

// codeTells reports whether incidents of the kind that differ by their codes are different ones.
func (k Kind) codeTells() bool { return k.isError() || k == NoExecuteTaint }

// ofError returns the kind of incident that an error with these labels is, "" if it is none.
func ofError(labels driver.Labels) Kind {
	if k := Kind(labels[0]); k.isError() {
		return k
	}
	return ""
}

// Resolution is why an incident has ended.
type Resolution string

// The resolutions.
const (
	Quiet      Resolution = "quiet" // the error has not happened for ten minutes; the device is readable and healthy
	Back       Resolution = "back"  // the device can be read, or the source answers, again
	Healthy    Resolution = "healthy"
	Untainted  Resolution = "untainted"
	WorksAgain Resolution = "works_again" // the claim shows life again
	ClaimGone  Resolution = "claim_gone"
	DeviceGone Resolution = "device_gone" // for ten minutes the node has not had the device, or the source
)

// Resolutions returns all resolutions.
func Resolutions() []Resolution {
	return []Resolution{Quiet, Back, Healthy, Untainted, WorksAgain, ClaimGone, DeviceGone}
}

// Meaning says what the resolution means: a clause without a full stop.
func (r Resolution) Meaning() string {
	return map[Resolution]string{
		Quiet: "not again for ten minutes, and the device is readable and healthy", Back: "it can be read again",
		Healthy: "healthy again", Untainted: "the taint is gone", WorksAgain: "the claim works again",
		ClaimGone: "the claim is gone", DeviceGone: "the node no longer has it",
	}[r]
}

// Holder is a claim and a pod that held a device. One of both may be unknown.
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
	// Hit says that the incident hit the holder: an error that named a process hit the process's pod
	// and its claims alone, all else hit all holders without admin access.
	Hit bool `json:"hit,omitempty"`
	// Possible says of one that was hit that it may not have been: it held the device, as far as is
	// known, for a part of the time in which the incident happened.
	Possible bool `json:"possible,omitempty"`
}

// same reports whether both are the same holder. UIDs may have become known since it began.
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

// Incident is something that happened to a device or to a source of telemetry, with what was
// recorded meanwhile of the device and of its holders. It is never changed.
type Incident struct {
	ID     string    `json:"id"`
	Kind   Kind      `json:"kind"`
	Code   string    `json:"code,omitempty"`
	Text   string    `json:"text"`             // what happened, in words
	Device driver.ID `json:"device,omitzero"`  // of all kinds but source_down
	Source string    `json:"source,omitempty"` // of source_down
	// Onset is when it began, Detected when it was found, Last when it happened last, and Count how
	// often. What happens again to the same holders before the end, or, if it is no error, within ten
	// minutes of it, is the same incident.
	Onset time.Time `json:"onset"`
	// NotBefore is there where it is not known when the first occurrence was: after it, and at Onset
	// at the latest.
	NotBefore time.Time `json:"notBefore,omitzero"`
	Detected  time.Time `json:"detected"`
	Last      time.Time `json:"last"`
	Count     int       `json:"count"`
	// End is when it was over, and Resolution why. Without them it is open.
	End        *time.Time `json:"end,omitempty"`
	Resolution Resolution `json:"resolution,omitempty"`
	Holders    []Holder   `json:"holders"`
	// Chart is what was recorded from a minute before to a minute after the onset, the detection and
	// the last occurrence. It grows until these are over. Only an incident that is asked for by its
	// identity has it.
	Chart *Chart `json:"recording,omitempty"`

	parent    string // of the device; "": it is no partition
	suspected bool   // that a claim is stalled has yet to be found
}

const (
	// evidence is how much is kept before and after an incident.
	evidence = time.Minute
	// mergeWithin is for how long an error must not happen again for its incident to be over, and for
	// how long after the end of any other incident the same is not another one.
	mergeWithin = 10 * time.Minute
	// recentError is how long after an error a device counts as in error.
	recentError = time.Minute
	// MaxIncidents bounds the incidents that are kept. Of the device that has the most that are over,
	// the oldest goes first.
	MaxIncidents = 64
	// maxEvidence bounds the series of an incident.
	maxEvidence = 256
)

// Open reports whether the incident has not ended.
func (i *Incident) Open() bool { return i.End == nil }

// Compare orders incidents as readers want them: those that are open first, then those that
// happened last.
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

// Position is where the incident is in the order of [Incident.Compare], as a text that falls.
func (i *Incident) Position() string {
	open := "0"
	if i.Open() {
		open = "1"
	}
	return open + "." + timeText(i.Last) + "." + i.ID
}

// same reports whether the incident is another occurrence of i.
func (i *Incident) same(other *Incident) bool {
	if i.Kind != other.Kind || i.Device != other.Device || i.Source != other.Source ||
		i.Kind.codeTells() && i.Code != other.Code {
		return false
	}
	if !i.Open() && (i.Kind.isError() || other.Last.Sub(*i.End) >= mergeWithin) {
		return false
	}
	return slices.EqualFunc(i.hits(), other.hits(), (*Holder).same)
}

// hits returns who was hit.
func (i *Incident) hits() (out []*Holder) {
	for n := range i.Holders {
		if h := &i.Holders[n]; h.Hit {
			out = append(out, h)
		}
	}
	return out
}

// Valid reports whether an incident that was read from a file can be one.
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

// Subject returns the device or the source that the incident is of.
func (i *Incident) Subject() string {
	if i.Source != "" {
		return "source " + i.Source
	}
	return i.Device.String()
}

// windows returns the times of which the incident has recordings, in order. They do not overlap.
func (i *Incident) windows() (out [][2]time.Time) {
	moments := []time.Time{i.Onset, i.Detected, i.Last}
	slices.SortFunc(moments, time.Time.Compare)
	for _, at := range moments {
		from, to := at.Add(-evidence), at.Add(evidence)
		if n := len(out) - 1; n >= 0 && !out[n][1].Before(from) {
			out[n][1] = to
			continue
		}
		out = append(out, [2]time.Time{from, to})
	}
	return out
}

// recorded returns when the recording is complete, unless the incident happens again.
func (i *Incident) recorded() time.Time {
	if i.Last.After(i.Detected) {
		return i.Last.Add(evidence)
	}
	return i.Detected.Add(evidence)
}

// describe returns what happened, in words.
func (i *Incident) describe() string {
	if i.Kind == SourceDown {
		return fmt.Sprintf("source %s fails: %s", i.Source, strings.ReplaceAll(i.Code, "_", " "))
	}
	what := map[Kind]string{
		XID: "XID " + i.Code, ECCUncorrected: "uncorrectable ECC error", RAS: "RAS error", LinkDown: "link down",
		DeviceLost: "lost: " + lossText(i.Code), NoExecuteTaint: "tainted: " + i.Code, Unhealthy: "reported as unhealthy",
		ClaimEndsInError: "a claim ended while the device was in error",
		ClaimStalled:     "a claim is busy and does nothing",
	}[i.Kind]
	if i.Code != "" && slices.Contains([]Kind{ECCUncorrected, RAS, LinkDown, ClaimStalled}, i.Kind) {
		what += " (" + i.Code + ")"
	}
	return fmt.Sprintf("%s: %s", i.Device.Device, what)
}

// timeText returns a time as a text that sorts by time.
func timeText(at time.Time) string { return at.UTC().Format("20060102T150405.000") }

// newID returns an identity of an incident or receipt that sorts by time and can be a file's name.
func newID(at time.Time, number int) string {
	return fmt.Sprintf("%s-%03d", timeText(at), number%1000)
}

// bounded returns the incidents without those beyond the bound, which it removes from the list.
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
