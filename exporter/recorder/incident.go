package recorder

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Kind is what happened to a device.
type Kind string

// The kinds of incidents. Those of errors are the kinds of the counter of errors.
const (
	XID              Kind = "xid"
	ECCUncorrected   Kind = "ecc_uncorrected"
	RAS              Kind = "ras"
	LinkDown         Kind = "link_down"
	DeviceLost       Kind = "device_lost" // it was readable, and is not any more
	NoExecuteTaint   Kind = "no_execute_taint"
	Unhealthy        Kind = "unhealthy"
	ClaimEndsInError Kind = "claim_ends_in_error" // a claim ended soon after an error, or on a failed device
	ClaimStalled     Kind = "claim_stalled"       // a claim is busy and does nothing
)

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{
		XID, ECCUncorrected, RAS, LinkDown, DeviceLost, NoExecuteTaint, Unhealthy, ClaimEndsInError, ClaimStalled,
	}
}

// ofError returns the kind of incident that an error with these labels is, "" if it is none.
func ofError(labels driver.Labels) Kind {
	if k := Kind(labels[0]); slices.Contains([]Kind{XID, ECCUncorrected, RAS, LinkDown}, k) {
		return k
	}
	return ""
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
}

func (h *Holder) compare(other *Holder) int {
	return cmp.Or(
		h.Compare(other.ID), strings.Compare(h.Namespace, other.Namespace), strings.Compare(h.Claim, other.Claim),
		strings.Compare(h.Pod, other.Pod), h.From.Compare(other.From),
	)
}

// Incident is something that happened to a device, with what was recorded of the device and of its
// holders in the minute before and after. It is never changed.
type Incident struct {
	ID     string    `json:"id"`
	Kind   Kind      `json:"kind"`
	Code   string    `json:"code,omitempty"`
	Text   string    `json:"text"` // what happened, in words
	Device driver.ID `json:"device"`
	// Time is when it happened, Last when it happened last, Count how often. The same that happens
	// again to the same holders within ten minutes is the same incident.
	Time  time.Time `json:"time"`
	Last  time.Time `json:"last"`
	Count int       `json:"count"`
	// Open says that the minute after is not over yet: the series are still to grow.
	Open    bool     `json:"open,omitempty"`
	Holders []Holder `json:"holders"`
	// Chart is there when the minute after is over, and, of an incident that is asked for by its
	// identity, before.
	Chart *Chart `json:"recording,omitempty"`

	parent string // of the device; "": it is no partition
}

const (
	// evidence is how much is kept before and after an incident.
	evidence = time.Minute
	// mergeWithin is how long the same incident is counted, and not told again.
	mergeWithin = 10 * time.Minute
	// recentError is how long after an error a device counts as in error.
	recentError = time.Minute
	// MaxIncidents bounds the incidents that are kept. Of the device that has the most, the oldest
	// goes first.
	MaxIncidents = 64
	// maxEvidence bounds the series of an incident.
	maxEvidence = 256
)

// same reports whether the incident is another one of i, which is merged.
func (i *Incident) same(other *Incident) bool {
	if i.Kind != other.Kind || i.Code != other.Code || i.Device != other.Device ||
		other.Time.Sub(i.Last) >= mergeWithin {
		return false
	}
	hit := func(of *Incident) (out []string) {
		for _, h := range of.Holders {
			if h.Hit {
				out = append(out, strings.Join([]string{h.Namespace, h.Claim, h.ClaimUID, h.Pod, h.PodUID}, "/"))
			}
		}
		return out
	}
	return slices.Equal(hit(i), hit(other))
}

// Valid reports whether an incident that was read from a file can be one.
func (i *Incident) Valid() bool {
	if i.ID == "" || i.Time.IsZero() || i.Last.Before(i.Time) || i.Count < 1 || !slices.Contains(Kinds(), i.Kind) {
		return false
	}
	return i.Chart == nil || i.Chart.valid()
}

// Pods returns the pods that the incident hit, as NAMESPACE/NAME.
func (i *Incident) Pods() []string { return i.hit(func(h *Holder) string { return h.Pod }) }

// Claims returns the claims that the incident hit, as NAMESPACE/NAME.
func (i *Incident) Claims() []string { return i.hit(func(h *Holder) string { return h.Claim }) }

func (i *Incident) hit(name func(*Holder) string) []string {
	var out []string
	for n := range i.Holders {
		if h := &i.Holders[n]; h.Hit && name(h) != "" {
			out = append(out, h.Namespace+"/"+name(h))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// describe returns what happened, in words.
func describe(kind Kind, code string, device driver.ID) string {
	what := map[Kind]string{
		XID: "XID " + code, ECCUncorrected: "uncorrectable ECC error", RAS: "RAS error", LinkDown: "link down",
		DeviceLost: "can no longer be read", NoExecuteTaint: "tainted: " + code, Unhealthy: "reported as unhealthy",
		ClaimEndsInError: "a claim ended while the device was in error",
		ClaimStalled:     "a claim is busy and does nothing",
	}[kind]
	if code != "" && kind != XID && !strings.Contains(what, code) {
		what += " (" + code + ")"
	}
	return fmt.Sprintf("%s: %s", device.Device, what)
}

// newID returns an identity of an incident or receipt that sorts by time and can be a file's name.
func newID(at time.Time, number int) string {
	return fmt.Sprintf("%s-%03d", at.UTC().Format("20060102T150405.000"), number%1000)
}

// bounded returns the incidents without those beyond the bound, which it removes from the list.
func bounded(all []*Incident) []*Incident {
	for len(all) > MaxIncidents {
		count := map[driver.ID]int{}
		for _, i := range all {
			count[i.Device]++
		}
		most := 0
		for n, i := range all {
			if count[i.Device] > count[all[most].Device] {
				most = n
			}
		}
		all = slices.Delete(all, most, most+1)
	}
	return all
}
