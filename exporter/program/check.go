package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/node"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// errCheck reports that check has printed a failure.
var errCheck = errors.New("check: something does not work, see above")

// check asks every input once and prints what it has, and what is missing and why.
func check(ctx context.Context, o *options, list []Source, log *slog.Logger, w io.Writer) error {
	api, err := newAPI(o, log)
	if err != nil {
		return err
	}
	found := &findings{rejected: map[string]driver.Rejections{}}
	n, err := newNode(o, api, found, log)
	if err != nil {
		return err
	}
	defer n.Close()
	sources, err := makeSources(o, list, n)
	if err != nil {
		return err
	}

	p := printer{w: w}
	p.line("node", o.node)
	held, ok := p.kubelet(ctx, n, o)
	p.podsAPI(ctx, n, o)
	ok = p.kube(ctx, n, held) && ok
	allocations, inventory := n.Describe(held)
	p.pods(n, allocations)
	p.line("inventory", fmt.Sprintf("%d devices", len(inventory)))
	if o.inventoryFile == "" && api == nil {
		p.line("", "neither API server nor --inventory.file: devices that are not held are unknown")
	}
	p.unresolved(found)
	for _, input := range slices.Sorted(maps.Keys(found.rejected)) {
		for _, r := range found.rejected[input].Of(input) {
			p.line("", fmt.Sprintf("%d rejected of %s: %s", r.Count, r.Input, r.Reason))
		}
	}
	in := join.Input{View: podresources.View{Allocations: allocations, At: time.Now()}, Inventory: inventory}
	for _, s := range sources {
		samples, good := p.source(ctx, s)
		ok = ok && good
		in.Sources = append(in.Sources, join.SourceSamples{Name: s.Name(), Samples: samples})
	}
	p.joined(join.Join(in))
	if p.err != nil {
		return p.err
	}
	if !ok {
		return errCheck
	}
	return nil
}

// findings collects the rejections of the node's inputs and what remains unknown of pods. It is
// used by one goroutine.
type findings struct {
	rejected              map[string]driver.Rejections
	conflicts, unresolved map[string]int
}

// Conflicts implements [node.Metrics].
func (f *findings) Conflicts(byKind map[string]int) { f.conflicts = byKind }

// UnresolvedPods implements [node.Metrics].
func (f *findings) UnresolvedPods(byReason map[string]int) { f.unresolved = byReason }

// Observe implements node.Metrics: check prints errors where they occur.
func (*findings) Observe(string, time.Duration, error, time.Time) {}

// Absent implements node.Metrics.
func (*findings) Absent(string, error) {}

// Reject implements node.Metrics.
func (f *findings) Reject(rejected ...driver.Rejection) {
	for _, one := range rejected {
		if f.rejected[one.Input] == nil {
			f.rejected[one.Input] = driver.Rejections{}
		}
		f.rejected[one.Input].Add(one.Reason, one.Count)
	}
}

// RejectTotal implements node.Metrics.
func (f *findings) RejectTotal(input string, totals driver.Rejections) { f.rejected[input] = totals }

// printer prints lines in two columns and keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(what, text string) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, "%-16s %s\n", what, printable(text))
	}
}

// kubelet asks the kubelet who holds what, and returns what is believed.
func (p *printer) kubelet(ctx context.Context, n *node.Node, o *options) (podresources.View, bool) {
	ctx, cancel := context.WithTimeout(ctx, sourceDeadline)
	defer cancel()
	answer, err := n.Observe(ctx)
	if err != nil {
		p.line("podresources", fmt.Sprintf("%s: %v", o.socket, err))
		return answer.View, false
	}
	claims := map[podresources.Claim]bool{}
	for i := range answer.View.Allocations {
		if a := &answer.View.Allocations[i]; !a.ByPlugin() {
			claims[a.Claim] = true
		}
	}
	p.line("podresources", fmt.Sprintf("%s: %d allocations of %d claims, answered in %v",
		o.socket, len(answer.View.Allocations), len(claims), answer.Took.Round(time.Microsecond)))
	for _, r := range answer.Rejected.Of("podresources") {
		p.line("", fmt.Sprintf("%d rejected: %s", r.Count, r.Reason))
	}
	return answer.View, true
}

// podsAPI lists the pods of the kubelet's Pods API. That older kubelets do not serve it is no
// failure.
func (p *printer) podsAPI(ctx context.Context, n *node.Node, o *options) {
	ctx, cancel := context.WithTimeout(ctx, sourceDeadline)
	defer cancel()
	pods, err := n.CheckPods(ctx)
	if err != nil {
		p.line("Pods API", fmt.Sprintf("%s: %v", o.podsSocket, err))
		return
	}
	p.line("Pods API", fmt.Sprintf("%s: %d pods", o.podsSocket, pods))
}

// kube asks the API server for everything that it is used for.
func (p *printer) kube(ctx context.Context, n *node.Node, view podresources.View) bool {
	if !n.UsesAPI() {
		p.line("API server", "not used: --kube=off, or neither in a cluster nor given a --kubeconfig")
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, sourceDeadline)
	defer cancel()
	ok := true
	for _, finding := range n.CheckAPI(ctx, view) {
		text := finding.Text
		if finding.Err != nil {
			ok, text = false, finding.Err.Error()
		}
		p.line("API: "+finding.Source, text)
	}
	return ok
}

// pods prints how many pods hold devices, and of how many the UID is unknown, without which their
// processes and network interfaces are not found.
func (p *printer) pods(n *node.Node, allocations []podresources.Allocation) {
	known := map[podresources.Pod]bool{}
	for i := range allocations {
		for _, h := range allocations[i].Holders {
			known[h.Pod] = known[h.Pod] || h.UID != "" || n.PodUID(h.Pod) != ""
		}
	}
	unknown := 0
	for _, k := range known {
		if !k {
			unknown++
		}
	}
	text := fmt.Sprintf("%d hold devices", len(known))
	if unknown > 0 {
		text += fmt.Sprintf("; Pods API, API server and log folders do not have the UIDs of %d", unknown)
	}
	p.line("pods", text)
}

// unresolved prints for how many pods it is unknown what they hold, and the conflicts.
func (p *printer) unresolved(found *findings) {
	for _, reason := range slices.Sorted(maps.Keys(found.unresolved)) {
		if n := found.unresolved[reason]; n > 0 {
			p.line("", fmt.Sprintf("of %d pods it is not known what they hold: %s", n, reason))
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(found.conflicts)) {
		if n := found.conflicts[kind]; n > 0 {
			p.line("", fmt.Sprintf("%d devices of which kubelet and API server disagree: %s", n, kind))
		}
	}
}

// betweenReadings is the time between two readings of a source. It is longer than any source needs
// for a rate (200 ms for NVIDIA's GPM).
const betweenReadings = 300 * time.Millisecond

// source samples twice, since rates need two readings.
func (p *printer) source(ctx context.Context, s driver.Source) ([]driver.Sample, bool) {
	ctx, cancel := context.WithTimeout(ctx, sourceDeadline)
	defer cancel()
	_, _ = s.Sample(ctx) // an error would occur again
	pause := time.NewTimer(betweenReadings)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
	samples, err := s.Sample(ctx)
	quantities := map[string]bool{}
	for _, sample := range samples {
		for _, r := range sample.Readings {
			quantities[r.Quantity.String()] = true
		}
	}
	names := make([]string, 0, len(quantities))
	for q := range quantities {
		names = append(names, q)
	}
	slices.Sort(names)
	what := "no hardware here"
	if len(samples) > 0 {
		what = fmt.Sprintf("%d pieces of hardware: %s", len(samples), strings.Join(names, ", "))
	}
	if err != nil {
		what += ": " + err.Error()
	}
	p.line(s.Name(), what)
	return samples, err == nil
}

// joined prints for each device whether it has telemetry.
func (p *printer) joined(r join.Result) {
	for i := range r.Devices {
		d := &r.Devices[i]
		text := "no telemetry: " + string(d.Missing)
		if d.Missing == join.MissingNone {
			text = fmt.Sprintf("%d readings", len(d.Readings))
		}
		if d.Attribution != join.AttributionNone {
			text += ", held (" + string(d.Attribution) + ")"
		}
		p.line("device", d.ID.String()+": "+text)
	}
}
