package web

import (
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

// report writes itself as JSON.
type report interface{ Write(w io.Writer) error }

// finder returns a report of the flight recorder.
type finder func() report

// recorded returns the parser of a path of the flight recorder.
func (c Config) recorded(parse func(url.Values) (key any, find finder, err error)) parser {
	return func(query url.Values) (any, writer, error) {
		if c.Recorder == nil {
			return nil, nil, errNoRecorder
		}
		key, find, err := parse(query)
		return key, func(to io.Writer, _ *exposition.Snapshot) error { return find().Write(to) }, err
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
	return of, func() report { return present.HistoryReport{Node: c.Node, History: c.Recorder.History(of)} }, nil
}

type constError string

func (e constError) Error() string { return string(e) }

const errNoSelection = constError("one of ?device=NAME, ?claim=NAMESPACE/NAME and ?pod=NAMESPACE/NAME is needed")

// receiptCost returns the ID of a receipt, and its size as text in units of a recorded value.
func receiptCost(r *recorder.Receipt) (string, int) {
	const ofDevice, ofPod = 512, 16
	return r.ID, len(r.Devices)*ofDevice + len(r.Pods)*ofPod
}

// newest returns the elements whose identity is lower than before, in descending order: as many as
// do not exceed the cost most, at least one. "" as before means all. next is the last identity
// returned if there are more elements, else "". Identities sort by time.
func newest[T any](all []T, before string, most int, cost func(T) (id string, n int)) (some []T, next string) {
	identity := func(of T) string { id, _ := cost(of); return id }
	if before != "" {
		all = slices.DeleteFunc(all, func(of T) bool { return identity(of) >= before })
	}
	slices.SortStableFunc(all, func(a, b T) int { return strings.Compare(identity(b), identity(a)) })
	total := 0
	for n, of := range all {
		id, more := cost(of)
		if total += more; n > 0 && total > most {
			return all[:n], next
		}
		next = id
	}
	return all, ""
}

// receipts answers ?claim=NAMESPACE/NAME with the receipts of one claim, else with all receipts.
// ?before is the ID of a receipt: only older ones are returned.
func (c Config) receipts(query url.Values) (any, finder, error) {
	claim, before := query.Get("claim"), query.Get("before")
	return []string{claim, before}, func() report {
		all := c.Recorder.Receipts()
		if claim != "" {
			all = slices.DeleteFunc(all, func(r *recorder.Receipt) bool {
				return r.SubAccountName+"/"+r.ResourceName != claim
			})
		}
		some, next := newest(all, before, recorder.MaxValues, receiptCost)
		return present.ReceiptsReport{Node: c.Node, Receipts: some, Next: next}
	}, nil
}
