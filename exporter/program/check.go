package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// errCheck says that check found something that does not work; what, it has printed.
var errCheck = errors.New("check: something does not work, see above")

// check asks everything once and says what there is, and what is missing and why.
func check(ctx context.Context, o *options, list []Source, log *slog.Logger, w io.Writer) error {
	sources, err := makeSources(o, list)
	if err != nil {
		return err
	}
	n, err := newNode(o, exporter.NewSelfMetrics(prometheus.NewRegistry(), o.node, slog.New(slog.DiscardHandler)), log)
	if err != nil {
		return err
	}
	defer n.close()

	p := printer{w: w}
	p.line("node", o.node)
	ok := p.kubelet(ctx, n, o)
	answer := podresources.View{Allocations: n.observer.Keeper.Allocations()}
	p.podsAPI(ctx, n, o)
	ok = p.kube(ctx, n, answer.Allocations) && ok
	allocations, inventory, rejected := n.Describe(answer.Allocations)
	p.pods(n, allocations)
	p.line("inventory", fmt.Sprintf("%d devices", len(inventory)))
	if o.inventoryFile == "" && n.kube == nil {
		p.line("", "neither API server nor --inventory.file: hardware that nobody holds has no DRA identity")
	}
	for _, r := range rejected {
		p.line("", fmt.Sprintf("%d rejected of %s: %s", r.Count, r.Input, r.Reason))
	}
	in := exporter.Input{View: podresources.View{Allocations: allocations, At: time.Now()}, Inventory: inventory}
	for _, s := range sources {
		samples, good := p.source(ctx, s)
		ok = ok && good
		in.Sources = append(in.Sources, exporter.SourceSamples{Name: s.Name(), Samples: samples})
	}
	p.joined(exporter.Join(in))
	if p.err != nil {
		return p.err
	}
	if !ok {
		return errCheck
	}
	return nil
}

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

func (p *printer) kubelet(ctx context.Context, n *node, o *options) bool {
	ctx, cancel := context.WithTimeout(ctx, sourceDeadline)
	defer cancel()
	answer, err := n.Observe(ctx)
	if err != nil {
		p.line("podresources", fmt.Sprintf("%s: %v", o.socket, err))
		return false
	}
	claims := map[podresources.Claim]bool{}
	for i := range answer.View.Allocations {
		if a := &answer.View.Allocations[i]; !a.ByPlugin() {
			claims[a.Claim] = true
		}
	}
	p.line("podresources", fmt.Sprintf("%s: %d allocations of %d claims, answered in %v",
		o.socket, len(answer.View.Allocations), len(claims), answer.Took.Round(time.Microsecond)))
	for _, r := range answer.Rejected {
		p.line("", fmt.Sprintf("%d rejected: %s", r.Count, r.Reason))
	}
	return true
}

// podsAPI follows the kubelet's pods for a moment. That older kubelets do not serve them is nothing that does not work.
func (p *printer) podsAPI(ctx context.Context, n *node, o *options) {
	ctx, cancel := context.WithTimeout(ctx, sourceDeadline)
	defer cancel()
	if err := n.podsAPI.Follow(ctx, n.pods, n.podWatch, cancel); ctx.Err() == nil {
		p.line("Pods API", fmt.Sprintf("%s: %v", o.podsSocket, err))
		return
	}
	p.line("Pods API", fmt.Sprintf("%s: %d pods", o.podsSocket, len(n.pods.All())))
}

// kube asks the API server for what it is asked for.
func (p *printer) kube(ctx context.Context, n *node, allocations []podresources.Allocation) bool {
	if n.kube == nil {
		p.line("API server", "not used: --kube=off, or neither in a cluster nor given a --kubeconfig")
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, sourceDeadline)
	defer cancel()
	ok := true
	for _, found := range n.kube.Check(ctx, allocations) {
		text := found.Text
		if found.Err != nil {
			ok, text = false, found.Err.Error()
		}
		p.line("API: "+found.Source, text)
	}
	return ok
}

// pods says how many pods hold devices, and of how many nobody tells the UID, without which neither their processes nor the interfaces
// in them are found.
func (p *printer) pods(n *node, allocations []podresources.Allocation) {
	known := map[podresources.Pod]bool{}
	for i := range allocations {
		for _, h := range allocations[i].Holders {
			known[h.Pod] = known[h.Pod] || h.UID != "" || n.pods.UID(h.Pod) != ""
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
		text += fmt.Sprintf("; Pods API, API server and log folders do not tell the UIDs of %d", unknown)
	}
	p.line("pods", text)
}

// betweenReadings is how long check waits between two readings of a source: longer than any source that makes rates of them does
// (200 ms for NVIDIA's GPM).
const betweenReadings = 300 * time.Millisecond

// source samples twice, since rates need two readings.
func (p *printer) source(ctx context.Context, s driver.Source) ([]driver.Sample, bool) {
	ctx, cancel := context.WithTimeout(ctx, sourceDeadline)
	defer cancel()
	_, _ = s.Sample(ctx) // its error comes again
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

// joined says of each device whether it has telemetry.
func (p *printer) joined(r exporter.Result) {
	for i := range r.Devices {
		d := &r.Devices[i]
		text := "no telemetry: " + string(d.Gap)
		if d.Gap == exporter.GapNone {
			text = fmt.Sprintf("%d readings", len(d.Readings))
		}
		if d.Attribution != exporter.AttributionNone {
			text += ", held (" + string(d.Attribution) + ")"
		}
		p.line("device", d.ID.String()+": "+text)
	}
}
