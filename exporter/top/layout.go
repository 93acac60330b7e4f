package top

import (
	"strings"

	"github.com/rivo/uniseg"
)

// Table is a table as text: a line of titles, and a line for each row, in cells of equal width.
type Table struct {
	Titles string
	Lines  []string
}

// gap separates columns.
const gap = "  "

// Layout formats rows in columns. A width above 0 is that of the terminal: long names are cut so
// that lines fit, the widest column first. clean replaces what could command a terminal.
func Layout(rows []Row, columns []Column, width int, clean func(string) string) Table {
	cells := make([][]string, len(rows))
	widths := make([]int, len(columns))
	for c := range columns {
		widths[c] = uniseg.StringWidth(columns[c].Title)
	}
	for r := range rows {
		cells[r] = make([]string, len(columns))
		for c := range columns {
			cells[r][c] = clean(columns[c].cell(&rows[r]))
			widths[c] = max(widths[c], uniseg.StringWidth(cells[r][c]))
		}
	}
	if width > 0 {
		shrink(widths, columns, width)
	}
	titles := make([]string, len(columns))
	for c := range columns {
		titles[c] = columns[c].Title
	}
	out := Table{Titles: line(titles, columns, widths, width)}
	for r := range cells {
		out.Lines = append(out.Lines, line(cells[r], columns, widths, width))
	}
	return out
}

// shrink makes columns narrower until a line fits, or no column can be cut any more.
func shrink(widths []int, columns []Column, width int) {
	for {
		total, widest := -len(gap), -1
		for c := range widths {
			total += widths[c] + len(gap)
			if least := columns[c].least; least > 0 && widths[c] > least && (widest < 0 || widths[c] > widths[widest]) {
				widest = c
			}
		}
		if total <= width || widest < 0 {
			return
		}
		widths[widest]--
	}
}

func line(cells []string, columns []Column, widths []int, width int) string {
	var out strings.Builder
	for c, text := range cells {
		if c > 0 {
			out.WriteString(gap)
		}
		text = cut(text, widths[c])
		pad := strings.Repeat(" ", widths[c]-uniseg.StringWidth(text))
		if columns[c].Right {
			out.WriteString(pad + text)
		} else {
			out.WriteString(text + pad)
		}
	}
	text := strings.TrimRight(out.String(), " ")
	if width > 0 {
		text = cut(text, width)
	}
	return text
}

// cut returns a text of at most that width in cells of a terminal; an ellipsis ends one that was
// longer.
func cut(text string, width int) string {
	if uniseg.StringWidth(text) <= width {
		return text
	}
	var out strings.Builder
	used := 0
	for graphemes := uniseg.NewGraphemes(text); graphemes.Next(); {
		if used += graphemes.Width(); used > width-1 {
			break
		}
		out.WriteString(graphemes.Str())
	}
	if width > 0 {
		out.WriteString("…")
	}
	return out.String()
}
