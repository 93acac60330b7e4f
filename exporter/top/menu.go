package top

import (
	"slices"

	"github.com/gdamore/tcell/v2"
)

// menu is a list in place of the table: of keys, or of what can be chosen.
type menu struct {
	title  string
	lines  []string
	at     int       // the selected line
	choose func(int) // nil: there is nothing to choose
}

// keys are those that the help shows. Function keys, and P, M, T and I, are those of htop.
func keys() []string {
	return []string{
		"F1 h ?   this help",
		"F3 F4 /  filter: rows that have all words in a name, a model or the state; Esc clears it",
		"F6 s     sort: F6 shows what by, s takes the next",
		"P M T    sort by utilization, memory, time without activity",
		"W N      sort by power (watts), network traffic",
		"I r      reverse the order",
		"1 to 5   devices, claims, pods, namespaces, incidents; Tab, ← and → go to the next",
		"Enter    details and the recording of the selected row",
		"w        all columns",
		"F10 q    quit",
	}
}

// sorters are keys that choose an order at once.
func sorters() map[rune]Order {
	return map[rune]Order{'P': ByUtilization, 'M': ByMemory, 'T': ByQuiet, 'W': ByPower, 'N': ByTraffic}
}

func (v *screen) openHelp() { v.menu = &menu{title: "Keys", lines: keys()} }

func (v *screen) openOrders() {
	v.closeDetails()
	v.menu = &menu{title: "Sort by", at: slices.Index(Orders(), v.Order), choose: func(i int) { v.Order = Orders()[i] }}
	for _, order := range Orders() {
		v.menu.lines = append(v.menu.lines, string(order))
	}
}

// function handles a function key, and reports whether it is one that the screen has. quit: the
// program ends.
func (v *screen) function(key tcell.Key) (is, quit bool) {
	switch key {
	case tcell.KeyF1:
		v.openHelp()
	case tcell.KeyF3, tcell.KeyF4:
		v.closeDetails()
		v.menu, v.typing = nil, true
	case tcell.KeyF6:
		v.openOrders()
	case tcell.KeyF10:
		return true, true
	default:
		return false, false
	}
	return true, false
}

// pick handles a key while there is a menu.
func (v *screen) pick(e *tcell.EventKey) {
	m := v.menu
	switch {
	case e.Key() == tcell.KeyUp || e.Rune() == 'k':
		m.at = max(0, m.at-1)
	case e.Key() == tcell.KeyDown || e.Rune() == 'j':
		m.at = min(len(m.lines)-1, m.at+1)
	case e.Key() == tcell.KeyEnter && m.choose != nil:
		m.choose(m.at)
		v.menu = nil
		v.arrange()
	default:
		v.menu = nil
	}
}

func (v *screen) drawMenu(width, shown int) {
	m := v.menu
	v.put(headLines-1, m.title, tcell.StyleDefault.Underline(true))
	first := max(0, m.at-shown+1)
	for i := first; i < len(m.lines) && i-first < shown; i++ {
		style, line := tcell.StyleDefault, m.lines[i]
		if m.choose != nil && i == m.at {
			style, line = style.Reverse(true), pad(line, width)
		}
		v.put(headLines+i-first, line, style)
	}
}
