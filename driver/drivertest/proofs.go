package drivertest

import (
	"os"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
)

// CheckProofs holds a column of the table of quantities in a Markdown file to the quantities that a
// source fills: those and no others have a cell there. A cell of "-" is none. The table is the one
// whose first column is called quantity.
func CheckProofs(tb testing.TB, file, column string, fills []driver.Quantity) {
	tb.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	_, table, found := strings.Cut(string(content), "\n| quantity |")
	table, _, _ = strings.Cut("| quantity |"+table, "\n\n")
	rows := strings.Split(table, "\n")
	at := 0
	for i, title := range cells(rows[0]) {
		if title == column {
			at = i
		}
	}
	if !found || at == 0 {
		tb.Fatalf("%s has no table of quantities with a column %s", file, column)
	}
	proven := map[string]bool{}
	for _, row := range rows[2:] {
		if row := cells(row); len(row) > at && row[at] != "-" {
			proven[row[0]] = true
		}
	}
	for _, q := range fills {
		if !proven[q.String()] {
			tb.Errorf("%s does not say how %v is proven from %s", file, q, column)
		}
		delete(proven, q.String())
	}
	for name := range proven {
		tb.Errorf("%s says how %s is proven from %s, which does not fill it", file, name, column)
	}
}

func cells(row string) []string {
	var out []string
	for cell := range strings.SplitSeq(strings.Trim(row, "|"), "|") {
		out = append(out, strings.TrimSpace(cell))
	}
	return out
}
