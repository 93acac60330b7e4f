package web

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// finder returns a report of the flight recorder.
type finder func() any

// recorded returns the parser of a path of the flight recorder.
func (c Config) recorded(parse func(url.Values) (key any, find finder, err error)) parser {
	return func(query url.Values) (any, writer, error) {
		if c.Recorder == nil {
			return nil, nil, errNoRecorder
		}
		key, find, err := parse(query)
		return key, func(to io.Writer, _ *exposition.Snapshot) error {
			found := find()
			if large, ok := found.(present.HistoryReport); ok {
				return large.Write(to)
			}
			return json.NewEncoder(to).Encode(found)
		}, err
	}
}

// history answers ?device=NAME (or DRIVER/POOL/NAME), ?claim=NAMESPACE/NAME and
// ?pod=NAMESPACE/NAME. ?seconds limits the time, ?after skips so many series.
func (c Config) history(query url.Values) (any, finder, error) {
	of := recorder.Selection{Device: query.Get("device")}
	for name, to := range map[string]*string{"claim": &of.Claim, "pod": &of.Pod} {
		if full := query.Get(name); full != "" {
			namespace, short, ok := strings.Cut(full, "/")
			if !ok {
				return nil, nil, fmt.Errorf("%s=%q is not NAMESPACE/NAME", name, full)
			}
			of.Namespace, *to = namespace, short
		}
	}
	if of.Device == "" && of.Claim == "" && of.Pod == "" || of.Claim != "" && of.Pod != "" {
		return nil, nil, errNoSelection
	}
	if text := query.Get("seconds"); text != "" {
		last, err := time.ParseDuration(text + "s")
		if err != nil || last <= 0 {
			return nil, nil, fmt.Errorf("seconds=%q is not a number above 0", text)
		}
		of.Last = last
	}
	if text := query.Get("after"); text != "" {
		after, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return nil, nil, fmt.Errorf("after=%q is not a number of series", text)
		}
		of.After = int(after)
	}
	return of, func() any { return present.HistoryReport{Node: c.Node, History: c.Recorder.History(of)} }, nil
}

var errNoSelection = errors.New("one of ?device=NAME, ?claim=NAMESPACE/NAME and ?pod=NAMESPACE/NAME is needed")

// maxReceiptCost is the size of an answer with receipts, about 5 bytes each: of a device 512, of a
// pod 16.
const maxReceiptCost = recorder.MaxValues

// newest returns the receipts with an ID lower than before, the newest first: as many as do not
// exceed a cost, at least one. "" as before means all. next is the last ID returned if there are
// more receipts, else "".
func newest(all []*recorder.Receipt, before string, most int) (some []*recorder.Receipt, next string) {
	all = slices.DeleteFunc(all, func(r *recorder.Receipt) bool { return before != "" && r.ID >= before })
	slices.SortStableFunc(all, func(a, b *recorder.Receipt) int { return strings.Compare(b.ID, a.ID) })
	for n, r := range all {
		if most -= 512*len(r.Devices) + 16*len(r.Pods); n > 0 && most < 0 {
			return all[:n], next
		}
		next = r.ID
	}
	return all, ""
}

// receipts answers ?claim=NAMESPACE/NAME with the receipts of one claim, else with all receipts.
// ?before is the ID of a receipt: only older ones are returned.
func (c Config) receipts(query url.Values) (any, finder, error) {
	claim, before := query.Get("claim"), query.Get("before")
	return []string{claim, before}, func() any {
		all := c.Recorder.Receipts()
		if claim != "" {
			all = slices.DeleteFunc(all, func(r *recorder.Receipt) bool {
				return r.SubAccountName+"/"+r.ResourceName != claim
			})
		}
		some, next := newest(all, before, maxReceiptCost)
		return present.ReceiptsReport{Node: c.Node, Receipts: some, Next: next}
	}, nil
}

// incidentQuery chooses the incidents that match all fields that are set.
type incidentQuery struct{ id, before, claim string }

// incidents answers ?id=ID with one incident and its recording. Without id, it answers with the
// incidents that match ?claim, from the position ?before on.
func (c Config) incidents(query url.Values) (any, finder, error) {
	of := incidentQuery{query.Get("id"), query.Get("before"), query.Get("claim")}
	if of.claim != "" && strings.Count(of.claim, "/") != 1 {
		return nil, nil, fmt.Errorf("claim=%q is not NAMESPACE/NAME", of.claim)
	}
	return of, func() any {
		out := present.IncidentsReport{Node: c.Node, Incidents: []*recorder.Incident{}}
		if of.id == "" {
			out.Incidents, out.Next = of.choose(c.Recorder.Incidents(), recorder.MaxIncidents)
		} else if one := c.Recorder.Incident(of.id); one != nil {
			out.Incidents = append(out.Incidents, one)
		}
		return out
	}, nil
}

// choose returns the matching incidents without their recordings, and the position after which
// further ones begin.
func (q *incidentQuery) choose(all []*recorder.Incident, most int) (some []*recorder.Incident, next string) {
	some = []*recorder.Incident{}
	for _, i := range all {
		switch {
		case q.before != "" && i.Position() >= q.before, q.claim != "" && !hits(i, q.claim):
			continue
		case len(some) == most:
			return some, some[len(some)-1].Position()
		}
		without := *i
		without.Chart = nil
		some = append(some, &without)
	}
	return some, ""
}

// hits reports whether an incident hit, or may have hit, a claim, given as NAMESPACE/NAME.
func hits(i *recorder.Incident, claim string) bool {
	return slices.Contains(i.Claims(), claim) || slices.Contains(i.PossibleClaims(), claim)
}
