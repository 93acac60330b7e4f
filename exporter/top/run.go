package top

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Format is how rows are printed.
type Format string

// The formats.
const (
	FormatTable Format = "table"
	FormatWide  Format = "wide"
	FormatJSON  Format = "json"
)

// Config configures [Print] and [Show].
type Config struct {
	Find     func(context.Context) ([]Node, error) // is asked before each round
	Interval time.Duration
	Order    Order
	Reverse  bool
	Filter   string
	Format   Format
	Clean    func(string) string // replaces what could command a terminal
}

// Print asks once and prints the rows. What answered is printed even if something did not, which is
// the error.
func Print(ctx context.Context, c Config, w io.Writer) error {
	var f fleet
	f.poll(ctx, c.Find)
	if len(f.rows()) > 0 || f.err() == nil {
		if err := c.print(&f, w); err != nil {
			return err
		}
	}
	return f.err()
}

func (c *Config) print(f *fleet, w io.Writer) error {
	all := f.rows()
	rows := Filter(all, c.Filter)
	Sort(rows, c.Order, c.Reverse)
	if c.Format == FormatJSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(append([]Row{}, rows...))
	}
	table := Layout(rows, Columns(len(f.answers) > 1, c.Format == FormatWide), 0, c.Clean)
	if _, err := fmt.Fprintf(w, "%s  %s\n\n%s\n", c.Clean(f.heading()), Summary(all), table.Titles); err != nil {
		return err
	}
	for _, line := range table.Lines {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// Repeat prints the rows again and again until ctx ends: where there is no terminal. Trouble after
// the first round is printed, and ends nothing.
func Repeat(ctx context.Context, c Config, w io.Writer) error {
	if err := Print(ctx, c, w); err != nil {
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
		if err := Print(ctx, c, w); err != nil && ctx.Err() == nil {
			if _, failed := fmt.Fprintln(w, c.Clean(err.Error())); failed != nil {
				return failed
			}
		}
	}
}
