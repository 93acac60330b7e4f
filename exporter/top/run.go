package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// Print prints the rows of one moment; as JSON, those of all views. If some exporters fail, it
// prints the answers of the others and returns an error.
func Print(ctx context.Context, c Config, w io.Writer) error {
	f := &fleet{}
	f.poll(ctx, c.Find)
	all, failed := f.everything(), f.err(c.View)
	if len(all.Devices) == 0 && failed != nil {
		return failed
	}
	if err := c.write(f, &all, w); err != nil {
		return err
	}
	return failed
}

func (c *Config) write(f *fleet, all *Everything, w io.Writer) error {
	chosen := all.chosen(c.Filter, c.Order, c.Reverse)
	if c.Format == FormatJSON {
		return encode(w, chosen)
	}
	if _, err := fmt.Fprintf(w, "%s  %s\n\n", c.Clean(f.heading()), all.summary()); err != nil {
		return err
	}
	table := chosen.table(c.View, len(f.answers) > 1, c.Format == FormatWide, c.Clean)
	return table.write(w)
}

func encode(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document)
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
		return errors.New(strings.ReplaceAll(failed.Error(), "\n", "; "))
	}
	return fmt.Errorf("%s: %w", of[0].Name, errNotFound)
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
