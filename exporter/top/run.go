package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// Format is how rows are printed.
type Format string

// The formats.
const (
	FormatTable Format = "table"
	FormatWide  Format = "wide"
	FormatJSON  Format = "json"
)

// Config configures [Print], [Show] and [Describe].
type Config struct {
	Find     func(context.Context) ([]Node, error) // is called before each round
	Interval time.Duration
	Order    Order
	Reverse  bool
	Filter   string
	Format   Format
	View     View                // "": devices
	Clean    func(string) string // replaces characters that control a terminal
}

// again is the time after which [Print] asks again for the rates of counters. Exporters have a new
// report each second.
const again = 1100 * time.Millisecond

// Print prints the rows of one moment; as JSON, those of all views. It asks twice if there is
// traffic to be measured. If some exporters fail, it prints the answers of the others and returns
// an error.
func Print(ctx context.Context, c Config, w io.Writer) error {
	p := printer{Config: c}
	p.ask(ctx)
	if len(p.before) > 0 && c.Interval > 0 {
		select {
		case <-time.After(again):
			p.ask(ctx)
		case <-ctx.Done():
		}
	}
	return p.write(w)
}

// printer prints rows.
type printer struct {
	Config
	fleet  fleet
	all    Everything
	before flows
}

func (p *printer) ask(ctx context.Context) {
	p.fleet.poll(ctx, p.Find)
	p.all, p.before = p.fleet.measured(p.before)
}

func (p *printer) write(w io.Writer) error {
	failed := p.fleet.err(p.View)
	if len(p.all.Devices) > 0 || failed == nil {
		if err := p.print(&p.fleet, &p.all, w); err != nil {
			return err
		}
	}
	return failed
}

func (c *Config) print(f *fleet, all *Everything, w io.Writer) error {
	chosen := all.chosen(c.Filter, c.Order, c.Reverse)
	if c.Format == FormatJSON {
		return encode(w, chosen)
	}
	table := chosen.table(c.View, len(f.answers) > 1, c.Format == FormatWide, 0, c.Clean)
	if _, err := fmt.Fprintf(w, "%s  %s\n\n%s\n", c.Clean(f.heading()), all.summary(), table.Titles); err != nil {
		return err
	}
	return printLines(w, table.Lines)
}

func encode(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document)
}

func printLines(w io.Writer, lines []string) error {
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// errNotFound is the error for something that no node has.
var errNotFound = errors.New("not found on any node that answered")

// Describe asks once and describes the first of the subjects that a node has: the reasons for the
// states of its devices, and the recording of the last ten minutes of a claim or pod. An exporter
// that does not answer is an error, unless another one has the subject.
func Describe(ctx context.Context, c Config, of []Subject, width int, w io.Writer) error {
	var f fleet
	f.poll(ctx, c.Find)
	for _, subject := range of {
		if lines := f.describe(ctx, subject, width); len(lines) > 0 {
			for i := range lines {
				lines[i] = c.Clean(lines[i])
			}
			return printLines(w, lines)
		}
	}
	if err := f.err(c.View); err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", of[0].Name, errNotFound)
}

// describe describes a subject by the answers of all nodes.
func (f *fleet) describe(ctx context.Context, of Subject, width int) []string {
	var out []string
	for _, name := range slices.SortedFunc(maps.Keys(f.answers), present.CompareNames) {
		a := f.answers[name]
		if a.report == nil {
			continue
		}
		lines := a.describe(of)
		if len(lines) > 0 && (of.View == ViewClaims || of.View == ViewPods) {
			lines = append(lines, a.charts(ctx, of, width)...)
		}
		out = append(out, lines...)
	}
	return out
}

// charts gets the recording of a subject, and draws it.
func (a *answer) charts(ctx context.Context, of Subject, width int) []string {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	chart, span, err := a.recording(ctx, of)
	if err != nil {
		return []string{err.Error()}
	}
	return drawHistory(chart, span, width)
}

// recording gets the recording of a subject, and returns its duration.
func (a *answer) recording(ctx context.Context, of Subject) (*recorder.Chart, time.Duration, error) {
	switch {
	case of.View == ViewIncidents && a.node.Incidents != nil:
		found, err := a.node.Incidents(ctx, newMemory().Open(maxNode), of.Name)
		if err != nil || len(found.Incidents) == 0 || found.Incidents[0].Chart == nil ||
			len(found.Incidents[0].Chart.Times) == 0 {
			return nil, 0, err
		}
		chart := found.Incidents[0].Chart
		return chart, chart.Times[len(chart.Times)-1].Sub(chart.Times[0]) + time.Second, nil
	case of.View != ViewIncidents && a.node.History != nil:
		found, err := a.node.History(ctx, newMemory().Open(maxNode), of.historyQuery())
		return found.Chart, historySpan, err
	default:
		return nil, 0, nil
	}
}

// Repeat prints the rows repeatedly until ctx ends, for output without a terminal. Failures after
// the first round are printed, and do not end it.
func Repeat(ctx context.Context, c Config, w io.Writer) error {
	p := printer{Config: c}
	p.ask(ctx)
	if err := p.write(w); err != nil {
		return err
	}
	for ticker := time.NewTicker(c.Interval); ; {
		select {
		case <-ctx.Done():
			ticker.Stop()
			return nil
		case <-ticker.C:
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		p.ask(ctx)
		if err := p.write(w); err != nil && ctx.Err() == nil {
			if _, failed := fmt.Fprintln(w, c.Clean(err.Error())); failed != nil {
				return failed
			}
		}
	}
}
