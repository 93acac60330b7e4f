package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"
	"time"
)

// saveResults writes results into a file.
func saveResults(path string, results []*result) error {
	content, err := json.Marshal(results)
	if err == nil {
		err = os.WriteFile(path, content, 0o600)
	}
	if err != nil {
		return fmt.Errorf("save results: %w", err)
	}
	return nil
}

// loadResults reads a file of saveResults.
func loadResults(path string) (results []*result, err error) {
	content, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(content, &results)
	}
	if err != nil {
		return nil, fmt.Errorf("load results: %w", err)
	}
	return results, nil
}

// printResult prints a result, and beside it that of the previous tree, if there is one: first the
// sums, then each rule and each panel.
func printResult(w io.Writer, r, was *result) {
	compared := was != nil
	if compared {
		printHead(w, was)
	} else {
		was = &result{}
	}
	printHead(w, r)
	printTable(w, compared, pair([]section{r.minute()}, []section{was.minute()}, true)[0])
	printTable(w, compared, pair([]section{r.boards()}, []section{was.boards()}, true)[0])
	for _, t := range slices.Concat(pair(r.Groups, was.Groups, true), pair(r.Boards, was.Boards, false)) {
		printTable(w, compared, t)
	}
}

func printHead(w io.Writer, r *result) {
	_, _ = fmt.Fprintf(w, "%s: %d nodes, %d series in a scrape, %.0f samples/s, %d series in the head, %.0f MB of heap, "+
		"written and recorded in %.0f s\n", r.Tree, r.Nodes, r.Scraped, r.SamplesPerSecond, r.Head,
		megabytes(int64(r.HeadBytes)), r.Written)
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

// boards returns the cost of each dashboard.
func (r *result) boards() section {
	out := section{Name: "all dashboards"}
	for i := range r.Boards {
		out.Rows = append(out.Rows, row{Kind: panelRow, Name: r.Boards[i].Name, cost: r.Boards[i].total()})
	}
	return out
}

// table has the rows of a section, each with its previous cost.
type table struct {
	name string
	rows []compared
}

// compared has the costs of a row in both trees. A cost is nil if the tree has no such row.
type compared struct {
	name       string
	after, was *cost
}

// pair finds for each row the previous one of the same name: in the same section, or in any section
// if rows may have moved. Removed rows come last.
func pair(after, was []section, moved bool) []table {
	key := func(s *section, r *row) string {
		if moved {
			return r.Name
		}
		return s.Name + ": " + r.Name
	}
	old := map[string][]*row{} // in order, since panels may share a title
	for i := range was {
		for j := range was[i].Rows {
			k := key(&was[i], &was[i].Rows[j])
			old[k] = append(old[k], &was[i].Rows[j])
		}
	}
	var tables []table
	found := map[*row]bool{}
	for i := range after {
		t := table{name: after[i].Name}
		for j := range after[i].Rows {
			r := &after[i].Rows[j]
			c := compared{name: r.Name, after: &r.cost}
			if k := key(&after[i], r); len(old[k]) > 0 {
				c.was, found[old[k][0]] = &old[k][0].cost, true
				old[k] = old[k][1:]
			}
			t.rows = append(t.rows, c)
		}
		tables = append(tables, t)
	}
	for i := range was {
		for j := range was[i].Rows {
			r := &was[i].Rows[j]
			if found[r] {
				continue
			}
			at := slices.IndexFunc(tables, func(t table) bool { return t.name == was[i].Name })
			if at < 0 {
				at = len(tables)
				tables = append(tables, table{name: was[i].Name})
			}
			tables[at].rows = append(tables[at].rows, compared{name: r.Name, was: &r.cost})
		}
	}
	return tables
}

// printTable prints a table with its sum. Previous costs are a separate column, if there are any.
func printTable(w io.Writer, compares bool, t table) {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer func() {
		_ = out.Flush()
		_, _ = fmt.Fprintln(w)
	}()
	header := "\tCPU s\tsamples\tseries\tMB\t\t"
	if compares {
		header = "\tCPU s\tbefore\t\tsamples\tbefore\t\tseries\tbefore\tMB\tbefore\t\t"
	}
	_, _ = fmt.Fprintln(out, header)
	sum := compared{name: t.name, after: &cost{}, was: &cost{}}
	for _, r := range t.rows {
		if r.after != nil {
			*sum.after = sum.after.add(*r.after)
		}
		if r.was != nil {
			*sum.was = sum.was.add(*r.was)
		}
	}
	sum.after.Refused, sum.was.Refused = "", ""
	printRow(out, compares, sum)
	for _, r := range t.rows {
		r.name = "  " + r.name
		printRow(out, compares, r)
	}
}

func printRow(w io.Writer, compares bool, r compared) {
	cell := func(text string) { _, _ = fmt.Fprint(w, "\t", text) }
	columns := []struct {
		text   func(c *cost) string
		number func(c *cost) float64 // of which the change is printed
	}{
		{func(c *cost) string { return fmt.Sprintf("%.3f", c.Seconds) }, func(c *cost) float64 { return c.Seconds }},
		{func(c *cost) string { return fmt.Sprint(c.Samples) }, func(c *cost) float64 { return float64(c.Samples) }},
		{func(c *cost) string { return fmt.Sprint(c.Series) }, nil},
		{func(c *cost) string { return fmt.Sprintf("%.2f", megabytes(c.Bytes)) }, nil},
	}
	orDash := func(c *cost, text func(*cost) string) string {
		if c == nil {
			return "-"
		}
		return text(c)
	}
	for _, column := range columns {
		cell(orDash(r.after, column.text))
		if !compares {
			continue
		}
		cell(orDash(r.was, column.text))
		if column.number != nil {
			cell(change(r, column.number))
		}
	}
	name := r.name
	if r.after != nil && r.after.Refused != "" {
		name += ": " + r.after.Refused
	}
	_, _ = fmt.Fprintf(w, "\t  %s\n", name)
}

// change returns the change of a number of a row in percent, or an empty text if the number is
// missing in one tree.
func change(r compared, number func(*cost) float64) string {
	if r.after == nil || r.was == nil || number(r.was) == 0 {
		return ""
	}
	return fmt.Sprintf("%+.0f%%", (number(r.after)/number(r.was)-1)*100)
}

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }
