package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// print prints first the sums, then each rule and each panel.
func (r *result) print(w io.Writer) {
	_, _ = fmt.Fprintf(w, "%s: %d nodes, %d series in a scrape, %.0f samples/s, %d series in the head, %.0f MB of heap, "+
		"written and recorded in %.0f s\n", r.Tree, r.Nodes, r.Scraped, r.SamplesPerSecond, r.Head,
		megabytes(int64(r.HeadBytes)), r.Written)
	sums := []section{r.minute(), r.boards("all dashboards", true), r.boards("all dashboards, as they open", false)}
	for _, s := range slices.Concat(sums, r.Groups, r.Boards) {
		s.print(w)
	}
}

// minute returns the cost of each group of rules in a minute.
func (r *result) minute() section {
	out := section{Name: "all rules, in a minute"}
	for i := range r.Groups {
		c, perMinute := r.Groups[i].total(), time.Minute.Seconds()/r.Groups[i].Every.Seconds()
		c.Seconds, c.Samples = c.Seconds*perMinute, int64(float64(c.Samples)*perMinute)
		out.Rows = append(out.Rows, row{Kind: ruleRow, Name: r.Groups[i].Name, cost: c})
	}
	return out
}

// boards returns the cost of each dashboard, with collapsed rows or without.
func (r *result) boards(name string, folded bool) section {
	out := section{Name: name}
	for i := range r.Boards {
		of := r.Boards[i]
		of.Rows = slices.DeleteFunc(slices.Clone(of.Rows), func(r row) bool { return r.folded && !folded })
		out.Rows = append(out.Rows, row{Kind: panelRow, Name: of.Name, cost: of.total()})
	}
	return out
}

// print prints the rows with their sum.
func (s *section) print(w io.Writer) {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(out, "\tCPU s\tsamples\tseries\tMB\t\t")
	sum := s.total()
	sum.Refused = ""
	for _, r := range slices.Concat([]row{{Name: s.Name, cost: sum}}, s.Rows) {
		name := r.Name
		if r.Refused != "" {
			name += ": " + r.Refused
		}
		_, _ = fmt.Fprintf(out, "\t%.3f\t%d\t%d\t%.2f\t  %s\n", r.Seconds, r.Samples, r.Series, megabytes(r.Bytes), name)
	}
	_ = out.Flush()
	_, _ = fmt.Fprintln(w)
}

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }
