package top

import (
	"slices"
	"strings"

	"github.com/rivo/uniseg"
)

// Table is a table as text: a line of titles and one line per row, with aligned columns.
type Table struct {
	Titles string
	Lines  []string
}

// gap separates columns.
const gap = "  "

// layout formats rows in columns. width is that of the terminal; 0: unlimited. Names are cut so
// that lines fit, the widest column first. If that does not suffice, columns are left out. clean
// replaces characters that control a terminal.
func layout[T any](rows []T, columns []Column[T], width int, clean func(string) string) Table {
	cells := make([][]string, len(rows)+1) // the first ones are the titles
	for c := range columns {
		cells[0] = append(cells[0], columns[c].Title)
		for r := range rows {
			cells[r+1] = append(cells[r+1], clean(columns[c].cell(&rows[r])))
		}
	}
	widths := fit(cells, columns, width)
	out := Table{Titles: line(cells[0], columns, widths, width)}
	for _, row := range cells[1:] {
		out.Lines = append(out.Lines, line(row, columns, widths, width))
	}
	return out
}

// fit returns the widths of the columns, 0 for omitted ones.
func fit[T any](cells [][]string, columns []Column[T], width int) []int {
	natural := make([]int, len(columns))
	for _, row := range cells {
		for c, text := range row {
			natural[c] = max(natural[c], uniseg.StringWidth(text))
		}
	}
	for c := range columns {
		if columns[c].spare && !slices.ContainsFunc(cells[1:], func(row []string) bool { return row[c] != known("") }) {
			natural[c] = 0
		}
	}
	for {
		widths := slices.Clone(natural)
		if width <= 0 || shrink(widths, columns, width) {
			return widths
		}
		least := -1
		for c := range columns {
			if natural[c] > 0 && columns[c].drop > 0 && (least < 0 || columns[c].drop < columns[least].drop) {
				least = c
			}
		}
		if least < 0 {
			return widths
		}
		natural[least] = 0
	}
}

// shrink makes columns narrower until a line fits. It reports whether one does.
func shrink[T any](widths []int, columns []Column[T], width int) bool {
	for {
		total, widest := -len(gap), -1
		for c := range widths {
			if widths[c] == 0 {
				continue
			}
			total += widths[c] + len(gap)
			if least := columns[c].least; least > 0 && widths[c] > least && (widest < 0 || widths[c] > widths[widest]) {
				widest = c
			}
		}
		switch {
		case total <= width:
			return true
		case widest < 0:
			return false
		}
		widths[widest]--
	}
}

func line[T any](cells []string, columns []Column[T], widths []int, width int) string {
	var out strings.Builder
	for c, text := range cells {
		if widths[c] == 0 {
			continue
		}
		if out.Len() > 0 {
			out.WriteString(gap)
		}
		text = cutMiddle(text, widths[c])
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

// cut cuts a text to a width in terminal cells. A cut text ends with an ellipsis.
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

// cutMiddle is cut, but keeps the end, in which names of devices and claims differ.
func cutMiddle(text string, width int) string {
	if uniseg.StringWidth(text) <= width || width < 3 {
		return cut(text, width)
	}
	head := cut(text, width-(width-1)/2) // with the ellipsis
	room, tail := width-uniseg.StringWidth(head), ""
	for rest := text; rest != ""; {
		_, after, _, _ := uniseg.FirstGraphemeClusterInString(rest, -1)
		if tail = after; uniseg.StringWidth(tail) <= room {
			break
		}
		rest = after
	}
	return head + tail
}

// wrap breaks a text that is too wide at spaces into lines of at most that width. Later lines are
// indented by four more spaces.
func wrap(text string, width int) []string {
	if uniseg.StringWidth(text) <= width {
		return []string{text}
	}
	indent := strings.Repeat(" ", len(text)-len(strings.TrimLeft(text, " ")))
	line := indent
	var out []string
	for n, word := range strings.Fields(text) {
		switch {
		case n == 0:
			line += word
		case uniseg.StringWidth(line)+1+uniseg.StringWidth(word) > width:
			out, line = append(out, cut(line, width)), indent+"    "+word
		default:
			line += " " + word
		}
	}
	return append(out, cut(line, width))
}

// pad pads a text to a width.
func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-uniseg.StringWidth(text)))
}
