package top

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/tview"
)

// Show shows the rows on the terminal's alternate screen until ctx ends or the user quits. An
// exporter that does not answer is shown as stale, with its last rows.
func Show(ctx context.Context, c Config) error {
	terminal, err := tcell.NewScreen()
	if err != nil {
		return fmt.Errorf("open the terminal: %w", err)
	}
	if err := terminal.Init(); err != nil {
		return fmt.Errorf("open the terminal: %w", err)
	}
	defer terminal.Fini()
	return newScreen(c, terminal).run(ctx)
}

// screen is the state of the terminal. Only the goroutine of run uses it, but for asked and wake.
type screen struct {
	Config
	terminal tcell.Screen
	colours  map[string]tcell.Color // by class
	polled                          // the last answers
	chosen   map[View]table         // filtered and sorted
	table    *tview.Table
	rows     []row // of the table
	text     *tview.TextView
	typing   bool     // the user types the filter
	help     bool     // the help is shown
	details  *Subject // shown in place of the table; nil: none

	asked atomic.Pointer[Subject] // details, which poll gets
	wake  chan struct{}           // has a value when poll must not wait
}

// polled are the answers of all nodes, and the details.
type polled struct {
	*fleet

	of    *Subject // of the details; nil: none
	lines []string
	err   error
}

func newScreen(c Config, terminal tcell.Screen) *screen {
	if c.View == "" {
		c.View = ViewDevices
	}
	v := &screen{
		Config: c, terminal: terminal, polled: polled{fleet: &fleet{}}, wake: make(chan struct{}, 1),
		table: tview.NewTable().SetFixed(1, 1).SetSelectable(true, false).SetEvaluateAllRows(true),
		text:  tview.NewTextView().SetDynamicColors(true).SetWordWrap(true).SetTextStyle(tcell.StyleDefault),
	}
	v.table.SetSelectedStyle(tcell.StyleDefault.Reverse(true)).SetBordersColor(tcell.ColorDefault).
		SetBackgroundColor(tcell.ColorDefault)
	v.text.SetBackgroundColor(tcell.ColorDefault)
	if os.Getenv("NO_COLOR") == "" {
		v.colours = map[string]tcell.Color{"bad": tcell.ColorRed, "warn": tcell.ColorYellow, "good": tcell.ColorGreen}
	}
	return v
}

func (v *screen) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, quit := make(chan tcell.Event), make(chan struct{})
	defer close(quit)
	go v.terminal.ChannelEvents(events, quit)
	answers := make(chan polled)
	go v.poll(ctx, answers)
	clock := time.NewTicker(time.Second) // ages of stale answers grow
	defer clock.Stop()
	for {
		v.draw(time.Now())
		select {
		case <-ctx.Done():
			return nil
		case v.polled = <-answers:
		case event := <-events:
			switch e := event.(type) {
			case *tcell.EventKey:
				if v.press(e) {
					return nil
				}
			case *tcell.EventResize:
				v.terminal.Sync()
			case nil:
				return nil // the terminal is gone
			}
		case <-clock.C:
			continue
		}
		v.arrange()
	}
}

// poll asks repeatedly, and sends copies of the answers.
func (v *screen) poll(ctx context.Context, answers chan<- polled) {
	var f fleet
	ticker := time.NewTicker(v.Interval)
	defer ticker.Stop()
	for {
		out := polled{of: v.asked.Load()}
		if out.of != nil && f.answers[out.of.from] != nil {
			out.lines, out.err = f.answers[out.of.from].node.detail(ctx, *out.of)
		}
		f.poll(ctx, v.Find)
		out.fleet = &fleet{answers: make(map[string]*answer, len(f.answers)), failed: f.failed}
		for name, a := range f.answers {
			kept := *a
			out.answers[name] = &kept
		}
		select {
		case answers <- out:
		case <-ctx.Done():
			return
		}
		select {
		case <-ticker.C:
		case <-v.wake:
		case <-ctx.Done():
			return
		}
	}
}

// arrange fills in the table, or the text in its place.
func (v *screen) arrange() {
	v.chosen = map[View]table{}
	for _, view := range Views() {
		v.chosen[view] = v.fleet.table(view, v.Filter, v.Order, v.Reverse)
	}
	shown := v.chosen[v.View]
	v.rows = shown.rows
	titles, lines := shown.lay(len(v.answers) > 1, v.Format == FormatWide, v.Clean)
	at, _ := v.table.GetSelection()
	v.table.Clear()
	for n, title := range titles {
		cell := v.cell(n, title, tcell.StyleDefault.Underline(true))
		v.table.SetCell(0, n, cell.SetSelectable(false))
	}
	for i, line := range lines {
		for n, text := range line {
			v.table.SetCell(1+i, n, v.cell(n, text, tcell.StyleDefault.Foreground(v.colours[v.rows[i].class])))
		}
	}
	v.table.Select(max(1, min(at, len(v.rows))), 0)
	switch {
	case v.help:
		v.text.SetText(tview.Escape(help))
	case v.details != nil:
		v.text.SetText(v.describe())
	}
}

// cell returns a cell of the table.
func (v *screen) cell(column int, text string, style tcell.Style) *tview.TableCell {
	if column > 0 {
		text = " " + text // the gap between columns
	}
	return &tview.TableCell{Text: tview.Escape(text), Style: style}
}

// describe returns the details as text.
func (v *screen) describe() string {
	lines := slices.Clone(v.lines)
	switch {
	case v.of != v.details:
		lines = []string{"loading …"}
	case v.err != nil:
		lines = []string{v.err.Error()}
	case len(lines) == 0:
		lines = []string{v.details.Name + " is gone"}
	}
	for i, line := range lines {
		lines[i] = tview.Escape(v.Clean(line))
		if !strings.HasPrefix(line, " ") {
			lines[i] = "[::b]" + lines[i] + "[::-]"
		}
	}
	return strings.Join(lines, "\n")
}

// open shows the details of the selected row.
func (v *screen) open() {
	at, _ := v.table.GetSelection()
	if at > len(v.rows) || len(v.rows) == 0 {
		return
	}
	of := v.rows[at-1].subject
	v.details = &of
	v.text.ScrollToBeginning()
	v.asked.Store(&of)
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// close shows the table again.
func (v *screen) close() {
	v.details, v.help = nil, false
	v.asked.Store(nil)
}

// show shows a view from its first row.
func (v *screen) show(view View) {
	v.close()
	v.View = view
	v.table.Select(1, 0).ScrollToBeginning()
}

// turn moves forward or back by a number of views.
func (v *screen) turn(by int) {
	views := Views()
	v.show(views[(slices.Index(views, v.View)+by+len(views))%len(views)])
}

// help is what F1 shows. Function keys, and P, M, T and I, are those of htop.
const help = `Keys
F1 h ?   this help
F3 F4 /  filter: rows that have all words in any column; Esc clears it
F6 s     sort by the next: state, device, utilization, memory, power, traffic, quiet, claim
P M T    sort by utilization, memory, time without activity
W N      sort by power (watts), network traffic
I r      reverse the order
1 to 4   devices, claims, pods, incidents; Tab goes to the next
← →      more columns
Enter    details and the recording of the selected row
w        all columns
F10 q    quit`

// press handles a key. quit: the program ends.
func (v *screen) press(e *tcell.EventKey) (quit bool) {
	inText := v.help || v.details != nil
	switch key := e.Key(); {
	case key == tcell.KeyCtrlC, key == tcell.KeyF10:
		return true
	case v.typing:
		v.edit(e)
	case key == tcell.KeyEscape && !inText:
		v.Filter = ""
	case key == tcell.KeyEscape, inText && (key == tcell.KeyEnter || e.Rune() == 'q'):
		v.close()
	case key == tcell.KeyEnter:
		v.open()
	case key == tcell.KeyTab:
		v.turn(1)
	case key == tcell.KeyBacktab:
		v.turn(-1)
	case e.Rune() == 'q':
		return true
	case !v.command(e):
		of := tview.Primitive(v.table)
		if inText {
			of = v.text
		}
		of.InputHandler()(e, func(tview.Primitive) {})
	}
	return false
}

// command handles the keys of commands, and reports whether a key is one.
func (v *screen) command(e *tcell.EventKey) bool {
	key := e.Rune()
	by := map[rune]Order{'P': ByUtilization, 'M': ByMemory, 'T': ByQuiet, 'W': ByPower, 'N': ByTraffic}
	orders := Orders()
	switch {
	case by[key] != "":
		v.Order = by[key]
	case key == 'h', key == '?', e.Key() == tcell.KeyF1:
		v.help = true
	case key >= '1' && key <= '4':
		v.show(Views()[key-'1'])
	case key == 'i':
		v.show(ViewIncidents)
	case key == 's', e.Key() == tcell.KeyF6:
		v.Order = orders[(slices.Index(orders, v.Order)+1)%len(orders)]
	case key == 'r', key == 'I':
		v.Reverse = !v.Reverse
	case key == 'w' && v.Format == FormatWide:
		v.Format = FormatTable
	case key == 'w':
		v.Format = FormatWide
	case key == '/', e.Key() == tcell.KeyF3, e.Key() == tcell.KeyF4:
		v.close()
		v.typing = true
	default:
		return false
	}
	return true
}

// edit changes the filter.
func (v *screen) edit(e *tcell.EventKey) {
	switch e.Key() {
	case tcell.KeyEnter:
		v.typing = false
	case tcell.KeyEscape:
		v.typing, v.Filter = false, ""
	case tcell.KeyBackspace, tcell.KeyBackspace2:
		if runes := []rune(v.Filter); len(runes) > 0 {
			v.Filter = string(runes[:len(runes)-1])
		}
	case tcell.KeyRune:
		v.Filter += string(e.Rune())
	default:
	}
	v.table.Select(1, 0)
}

// draw draws the heading, the views, the troubles, the table or text, and the footer.
func (v *screen) draw(now time.Time) {
	v.terminal.Clear()
	width, height := v.terminal.Size()
	v.line(0, "[::b]", v.heading())
	x := 0
	for i, view := range Views() {
		style := map[bool]string{true: "[::r]"}[view == v.View]
		_, n := tview.Print(v.terminal, fmt.Sprintf("%s%d %s %d", style, i+1, view, len(v.chosen[view].rows)), x, 1, width-x,
			tview.AlignLeft, tcell.ColorDefault)
		x += n + 2
	}
	if troubles := v.troubles(now); len(troubles) > 0 {
		v.line(2, map[bool]string{true: "[red]"}[v.colours != nil], strings.Join(troubles, "; "))
	}
	body := tview.Primitive(v.table)
	if v.help || v.details != nil {
		body = v.text
	}
	body.SetRect(0, 3, width, max(0, height-4))
	body.Draw(v.terminal)
	v.line(height-1, "[::d]", v.footer())
	v.terminal.Show()
}

// line writes a line in a style of tview.
func (v *screen) line(y int, style, text string) {
	width, _ := v.terminal.Size()
	tview.Print(v.terminal, style+tview.Escape(v.Clean(text)), 0, y, width, tview.AlignLeft, tcell.ColorDefault)
}

func (v *screen) footer() string {
	switch {
	case v.typing:
		return "filter: " + v.Filter + "_"
	case v.help || v.details != nil:
		return "Esc back  ↑↓ scroll  F1 help  F10 quit"
	}
	out := "by " + string(v.Order)
	if v.Reverse {
		out += ", reversed"
	}
	if v.Filter != "" {
		out += fmt.Sprintf(", %d with %q", len(v.rows), v.Filter)
	}
	return out + "  F1 help  F3 / filter  F6 sort  Enter details  F10 quit"
}
