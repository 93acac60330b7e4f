package top

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/present"
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

// Print prints the rows of one moment, or JSON. If some exporters fail, it prints the answers of
// the others and returns an error.
func Print(ctx context.Context, c Config, w io.Writer) error {
	if c.Format == FormatJSON {
		return c.printJSON(ctx, w)
	}
	f := &fleet{}
	f.poll(ctx, c.Find)
	failed := f.err()
	if len(f.pages()) == 0 && failed != nil {
		return failed
	}
	if _, err := fmt.Fprintf(w, "%s\n\n", c.Clean(f.heading())); err != nil {
		return err
	}
	shown := f.table(cmp.Or(c.View, ViewDevices), c.Filter, c.Order, c.Reverse)
	titles, lines := shown.lay(len(f.answers) > 1, c.Format == FormatWide, c.Clean)
	return cmp.Or(write(w, titles, lines), failed)
}

// Documents are what an exporter serves as JSON.
type Documents struct {
	Name      string          `json:"name"`
	Snapshot  json.RawMessage `json:"snapshot,omitempty"`  // /api/v1/snapshot
	Incidents json.RawMessage `json:"incidents,omitempty"` // /api/v1/incidents
	Error     string          `json:"error,omitempty"`

	err error // of the snapshot
}

// printJSON prints what all exporters serve as JSON, unchanged.
func (c *Config) printJSON(ctx context.Context, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	nodes, err := c.Find(ctx)
	if err != nil {
		return err
	}
	memory := newMemory()
	var all []*Documents
	askEach(nodes, func(n Node) func() {
		d, account := &Documents{Name: n.Name}, memory.Open(maxNode)
		all = append(all, d)
		return func() {
			var without error // the flight recorder may be off
			d.Snapshot, d.err = fetch[json.RawMessage](ctx, n, "/api/v1/snapshot", nil, account)
			d.Incidents, without = fetch[json.RawMessage](ctx, n, "/api/v1/incidents", nil, account)
			if err := cmp.Or(d.err, without); err != nil {
				d.Error = err.Error()
			}
		}
	})
	slices.SortFunc(all, func(a, b *Documents) int { return present.CompareNames(a.Name, b.Name) })
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	err = encoder.Encode(all)
	for _, d := range all {
		err = errors.Join(err, d.err)
	}
	return oneLine(err)
}

// errNotFound is the error for something that no node has.
var errNotFound = errors.New("not found on any node that answered")

// Describe asks once and describes the first of the subjects that a node has. An exporter that does
// not answer is an error, unless another one has the subject.
func Describe(ctx context.Context, c Config, of []Subject, w io.Writer) error {
	nodes, err := c.Find(ctx)
	if err != nil {
		return err
	}
	nodes = slices.SortedFunc(slices.Values(nodes), func(a, b Node) int { return present.CompareNames(a.Name, b.Name) })
	var failed error
	for _, subject := range of {
		var lines []string
		var err error
		if lines, nodes, err = describe(ctx, nodes, subject); len(lines) > 0 {
			for i := range lines {
				lines[i] = c.Clean(lines[i])
			}
			_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
			return err
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		return oneLine(failed)
	}
	return fmt.Errorf("%s: %w", of[0].Name, errNotFound)
}

// oneLine returns an error whose text has one line.
func oneLine(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}

// describe describes a subject by the answers of all nodes, in their order. It returns the nodes
// that answered.
func describe(ctx context.Context, nodes []Node, of Subject) (lines []string, answered []Node, err error) {
	type said struct {
		Node

		lines []string
		err   error
	}
	var all []*said
	askEach(nodes, func(n Node) func() {
		s := &said{Node: n}
		all = append(all, s)
		return func() { s.lines, s.err = n.detail(ctx, of) }
	})
	for _, s := range all {
		lines, err = append(lines, s.lines...), errors.Join(err, s.err)
		if s.err == nil {
			answered = append(answered, s.Node)
		}
	}
	return lines, answered, err
}

// Subject is the subject of details.
type Subject struct {
	View View
	Name string // DRIVER/POOL/DEVICE or DEVICE, NAMESPACE/NAME, or the ID of an incident

	from string // the exporter; "": any
}

// detail gets the details of a subject as lines; none if the exporter does not have the subject.
func (n Node) detail(ctx context.Context, of Subject) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	kind := map[View]string{ViewClaims: "claim", ViewPods: "pod", ViewIncidents: "incident"}[of.View]
	query := url.Values{cmp.Or(kind, "device"): {of.Name}, "json": {""}}
	d, err := fetch[present.Detail](ctx, n, detailPath, query, newMemory().Open(maxNode))
	if err != nil || len(d.Sections) == 0 {
		return nil, err
	}
	return d.Lines(), nil
}
