package main

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
)

// printResults prints the results of one number of nodes: one, or those of the tree before and the
// tree after.
func printResults(w io.Writer, results []*result) {
	for _, r := range results {
		_, _ = fmt.Fprintf(w, "%s: %d nodes, %d series in a scrape, %.0f samples/s, %d series in the head, %.0f MB of heap, "+
			"written in %.0f s\n", r.tree, r.nodes, r.scraped, r.samplesPerSecond, r.head, megabytes(int64(r.headBytes)),
			r.written.Seconds())
	}
	after := results[len(results)-1]
	var previous *result
	if len(results) > 1 {
		previous = results[0]
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	header := "\tCPU s\tsamples\tseries\tMB\t\t"
	if previous != nil {
		header = "\tCPU s\tbefore\tsamples\tbefore\tseries\tbefore\tMB\tbefore\t\t"
	}
	for _, part := range []func(*result) []section{
		func(r *result) []section { return r.groups }, func(r *result) []section { return r.boards },
	} {
		var old []section
		if previous != nil {
			old = part(previous)
		}
		for _, s := range part(after) {
			_, _ = fmt.Fprintln(table, header)
			was, rows := find(old, s.name)
			printRow(table, previous != nil, s.total(), was, s.name)
			for _, r := range s.rows {
				printRow(table, previous != nil, r.cost, rows[r.name], "  "+r.name)
			}
			_ = table.Flush()
			_, _ = fmt.Fprintln(w)
		}
	}
}

// find returns what a section took, and its rows by name.
func find(sections []section, name string) (total *cost, rows map[string]*cost) {
	rows = map[string]*cost{}
	for i := range sections {
		if sections[i].name == name {
			sum := sections[i].total()
			total = &sum
		}
		for j := range sections[i].rows { // rules may have moved to another group
			r := &sections[i].rows[j]
			if sections[i].name == name || rows[r.name] == nil {
				rows[r.name] = &r.cost
			}
		}
	}
	return total, rows
}

func printRow(w io.Writer, compared bool, c cost, was *cost, name string) {
	texts := func(c *cost) [4]string {
		if c == nil {
			return [4]string{"-", "-", "-", "-"}
		}
		return [4]string{
			fmt.Sprintf("%.3f", c.Seconds), strconv.FormatInt(c.Samples, 10), strconv.Itoa(c.Series),
			fmt.Sprintf("%.2f", megabytes(c.Bytes)),
		}
	}
	_, _ = fmt.Fprint(w, "\t")
	now, before := texts(&c), texts(was)
	for i := range now {
		_, _ = fmt.Fprint(w, now[i], "\t")
		if compared {
			_, _ = fmt.Fprint(w, before[i], "\t")
		}
	}
	if c.Refused != "" {
		name += ": " + c.Refused
	}
	_, _ = fmt.Fprintf(w, "\t  %s\n", name)
}

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }
