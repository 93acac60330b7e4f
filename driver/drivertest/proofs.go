package drivertest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// CheckProofs compares a column of a table of quantities in a Markdown file with the quantities
// that a source fills: the cells of all others are empty there. The table is the first one with
// that column whose first column is called quantity.
func CheckProofs(tb testing.TB, file, column string, fills []driver.Quantity) {
	tb.Helper()
	content, err := os.ReadFile(file)
	must.Do(tb, err)
	rows, at := tableOf(string(content), column)
	must.That(tb, at != 0, "%s has no table of quantities with a column %s", file, column)
	proven := map[string]bool{}
	for _, row := range rows[2:] {
		if row := cells(row); len(row) > at && row[at] != "" {
			proven[strings.Trim(row[0], "`")] = true
		}
	}
	for _, q := range fills {
		expect.That(tb, proven[q.String()], "%s does not say how %v is proven from %s", file, q, column)
		delete(proven, q.String())
	}
	for name := range proven {
		tb.Errorf("%s says how %s is proven from %s, which does not fill it", file, name, column)
	}
}

// tableOf returns the rows of the table of quantities with that column, and where the column is; 0:
// there is none.
func tableOf(content, column string) (rows []string, at int) {
	const begin = "\n| quantity |"
	tables := strings.Split(content, begin)
	for _, table := range tables[1:] {
		table, _, _ = strings.Cut(begin[1:]+table, "\n\n")
		rows = strings.Split(table, "\n")
		if at := slices.Index(cells(rows[0]), column); at > 0 {
			return rows, at
		}
	}
	return nil, 0
}

func cells(row string) []string {
	var out []string
	for cell := range strings.SplitSeq(strings.Trim(row, "|"), "|") {
		out = append(out, strings.TrimSpace(cell))
	}
	return out
}
