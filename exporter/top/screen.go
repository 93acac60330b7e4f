package top

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/uniseg"

	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
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

// screen is the state of the terminal. Only the goroutine of run uses it.
type screen struct {
	Config
	terminal tcell.Screen
	colours  bool
	fleet    *fleet
	all      Everything
	before   flows
	chosen   Everything // filtered and sorted
	first    int        // the first visible row
	at       int        // the selected row
	typing   bool       // the user types the filter
	details  *details   // shown in place of the table; nil: none
	menu     *menu      // the same
	recorded chan recorded
}

// details are the details of a subject.
type details struct {
	of     Subject
	first  int // the first visible line
	chart  *recorder.Chart
	span   time.Duration
	err    error
	asked  bool // a recording was received
	cancel context.CancelFunc
}

// recorded is a recording for details.
type recorded struct {
	of    *details
	chart *recorder.Chart
	span  time.Duration
	err   error
}

func newScreen(c Config, terminal tcell.Screen) *screen {
	if c.View == "" {
		c.View = ViewDevices
	}
	return &screen{
		Config: c, terminal: terminal, colours: os.Getenv("NO_COLOR") == "", fleet: &fleet{}, recorded: make(chan recorded),
	}
}

func (v *screen) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, quit := make(chan tcell.Event), make(chan struct{})
	defer close(quit)
	go v.terminal.ChannelEvents(events, quit)
	polled := make(chan *fleet)
	go v.poll(ctx, polled)
	clock := time.NewTicker(time.Second) // ages of stale answers grow
	defer clock.Stop()
	for {
		v.draw(time.Now())
		select {
		case <-ctx.Done():
			return nil
		case v.fleet = <-polled:
			v.all, v.before = v.fleet.measured(v.before)
			v.arrange()
		case news := <-v.recorded:
			news.of.chart, news.of.span, news.of.err, news.of.asked = news.chart, news.span, news.err, true
		case event := <-events:
			switch e := event.(type) {
			case *tcell.EventKey:
				if v.press(ctx, e) {
					return nil
				}
			case *tcell.EventResize:
				v.terminal.Sync()
			case nil:
				return nil // the terminal is gone
			}
		case <-clock.C:
		}
	}
}

// poll asks repeatedly, and sends copies of the answers.
func (v *screen) poll(ctx context.Context, polled chan<- *fleet) {
	var f fleet
	ticker := time.NewTicker(v.Interval)
	defer ticker.Stop()
	for {
		f.poll(ctx, v.Find)
		answers := make(map[string]*answer, len(f.answers))
		for name, a := range f.answers {
			kept := *a
			answers[name] = &kept
		}
		select {
		case polled <- &fleet{answers: answers, failed: f.failed}:
		case <-ctx.Done():
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (v *screen) arrange() { v.chosen = v.all.chosen(v.Filter, v.Order, v.Reverse) }

// recordEvery is the time between two requests for the recording of a subject.
const recordEvery = 2 * time.Second

// open shows the details of the selected row; for a namespace, its claims.
func (v *screen) open(ctx context.Context) {
	if v.at >= v.chosen.count(v.View) {
		return
	}
	of := v.chosen.subject(v.View, v.at)
	if of.View == ViewNamespaces {
		v.show(ViewClaims)
		v.Filter = of.Name + "/"
		return
	}
	v.details = &details{of: of}
	ctx, v.details.cancel = context.WithCancel(ctx)
	go v.record(ctx, v.details, *v.fleet.answers[of.from])
}

// record requests the recording of a subject repeatedly.
func (v *screen) record(ctx context.Context, of *details, from answer) {
	ticker := time.NewTicker(max(v.Interval, recordEvery))
	defer ticker.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, fetchTimeout)
		news := recorded{of: of}
		news.chart, news.span, news.err = from.recording(asking, of.of)
		cancel()
		select {
		case v.recorded <- news:
		case <-ctx.Done():
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// closeDetails shows the table again.
func (v *screen) closeDetails() {
	if v.details != nil {
		v.details.cancel()
		v.details = nil
	}
}

// show shows a view from its first row.
func (v *screen) show(view View) {
	v.closeDetails()
	v.View, v.at, v.first = view, 0, 0
}

// press handles a key. quit: the program ends.
func (v *screen) press(ctx context.Context, e *tcell.EventKey) (quit bool) {
	if e.Key() == tcell.KeyCtrlC {
		return true
	}
	if is, quit := v.function(e.Key()); is {
		return quit
	}
	switch {
	case v.menu != nil:
		v.pick(e)
		return false
	case v.typing:
		v.edit(e)
		return false
	}
	at := &v.at
	if v.details != nil {
		at = &v.details.first
	}
	_, height := v.terminal.Size()
	page := max(1, height-headLines-1)
	switch e.Key() {
	case tcell.KeyEscape:
		if v.details != nil {
			v.closeDetails()
		} else {
			v.Filter = ""
		}
	case tcell.KeyEnter:
		if v.details == nil {
			v.open(ctx)
		}
	case tcell.KeyTab, tcell.KeyRight:
		v.turn(1)
	case tcell.KeyBacktab, tcell.KeyLeft:
		v.turn(-1)
	case tcell.KeyUp:
		*at--
	case tcell.KeyDown:
		*at++
	case tcell.KeyPgUp:
		*at -= page
	case tcell.KeyPgDn:
		*at += page
	case tcell.KeyHome:
		*at = 0
	case tcell.KeyEnd:
		*at = math.MaxInt32
	case tcell.KeyRune:
		quit = v.command(e.Rune(), at)
	default:
	}
	v.arrange()
	return quit
}

// turn moves forward or back by a number of views.
func (v *screen) turn(by int) {
	views := Views()
	v.show(views[(slices.Index(views, v.View)+by+len(views))%len(views)])
}

func (v *screen) command(key rune, at *int) (quit bool) {
	if order, is := sorters()[key]; is {
		v.Order = order
	}
	switch key {
	case 'h', '?':
		v.openHelp()
	case 'q':
		if v.details == nil {
			return true
		}
		v.closeDetails()
	case 'k':
		*at--
	case 'j':
		*at++
	case '1', '2', '3', '4', '5':
		v.show(Views()[key-'1'])
	case 'i':
		v.show(ViewIncidents)
	case 's':
		orders := Orders()
		v.Order = orders[(slices.Index(orders, v.Order)+1)%len(orders)]
	case 'r', 'I':
		v.Reverse = !v.Reverse
	case 'w':
		if v.Format == FormatWide {
			v.Format = FormatTable
		} else {
			v.Format = FormatWide
		}
	case '/':
		v.closeDetails()
		v.typing = true
	}
	return false
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
	v.at, v.first = 0, 0
	v.arrange()
}

// headLines is the number of lines above the rows: heading, views, troubles and titles.
const headLines = 4

const (
	help        = "F1 help  F3 / filter  F6 sort  Enter details  F10 quit"
	helpDetails = "Esc back  ↑↓ scroll  F1 help  F10 quit"
	helpMenu    = "↑↓ Enter choose  Esc back"
)

func (v *screen) draw(now time.Time) {
	v.terminal.Clear()
	width, height := v.terminal.Size()
	v.put(0, v.Clean(v.fleet.heading())+"  "+v.all.summary(), tcell.StyleDefault.Bold(true))
	v.drawTabs()
	if troubles := v.fleet.troubles(now, v.View); len(troubles) > 0 {
		v.put(2, v.Clean(strings.Join(troubles, "; ")), v.colour(tcell.ColorRed))
	}
	shown := max(0, height-headLines-1)
	switch {
	case v.menu != nil:
		v.drawMenu(width, shown)
	case v.details != nil:
		v.drawDetails(width, shown)
	default:
		v.drawTable(width, shown)
	}
	v.put(height-1, v.footer(), tcell.StyleDefault.Dim(true))
	v.terminal.Show()
}

// drawTabs draws the names of the views with their keys, and their numbers of rows if they fit.
func (v *screen) drawTabs() {
	var tabs, short []string
	for i, view := range Views() {
		short = append(short, fmt.Sprintf("%d %s", i+1, view))
		tabs = append(tabs, fmt.Sprintf("%d %s %d", i+1, view, v.chosen.count(view)))
	}
	if width, _ := v.terminal.Size(); len(strings.Join(tabs, gap)) > width {
		tabs = short
	}
	x := 0
	for i, text := range tabs {
		style := tcell.StyleDefault
		if Views()[i] == v.View {
			style = style.Reverse(true)
		}
		v.putAt(x, 1, text, style)
		x += len(text) + len(gap)
	}
}

func (v *screen) drawTable(width, shown int) {
	table := v.chosen.table(v.View, len(v.fleet.answers) > 1, v.Format == FormatWide, width, v.Clean)
	v.at = max(0, min(v.at, len(table.Lines)-1))
	v.first = max(0, min(v.first, v.at), v.at-shown+1)
	v.put(headLines-1, table.Titles, tcell.StyleDefault.Underline(true))
	for i := v.first; i < len(table.Lines) && i-v.first < shown; i++ {
		style, line := v.styleAt(i), table.Lines[i]
		if i == v.at {
			style, line = style.Reverse(true), pad(line, width)
		}
		v.put(headLines+i-v.first, line, style)
	}
}

func (v *screen) drawDetails(width, shown int) {
	d := v.details
	var lines []string
	if a := v.fleet.answers[d.of.from]; a != nil && a.report != nil {
		for _, line := range a.describe(d.of) {
			lines = append(lines, wrap(line, width)...)
		}
	}
	if len(lines) == 0 {
		lines = []string{d.of.Name + " is gone"}
	}
	switch {
	case d.err != nil:
		lines = append(lines, "", d.err.Error())
	case d.asked:
		lines = append(lines, drawHistory(d.chart, d.span, width)...)
	default:
		lines = append(lines, "", "loading the recording …")
	}
	d.first = max(0, min(d.first, len(lines)-shown-1))
	for i := d.first; i < len(lines) && i-d.first <= shown; i++ {
		style := tcell.StyleDefault
		if lines[i] != "" && !strings.HasPrefix(lines[i], " ") && i < len(lines) && lines[i][0] < 0x80 {
			style = style.Bold(true)
		}
		v.put(headLines-1+i-d.first, v.Clean(lines[i]), style)
	}
}

func (v *screen) footer() string {
	if v.typing {
		return "filter: " + v.Clean(v.Filter) + "_"
	}
	switch {
	case v.menu != nil:
		return helpMenu
	case v.details != nil:
		return helpDetails
	}
	out := "by " + string(v.Order)
	if v.Reverse {
		out += ", reversed"
	}
	if v.Filter != "" {
		out += fmt.Sprintf(", %d with %q", v.chosen.count(v.View), v.Clean(v.Filter))
	}
	return out + "  " + help
}

// styleAt returns the style of a line of the table.
func (v *screen) styleAt(line int) tcell.Style {
	switch v.View {
	case ViewIncidents:
		if v.chosen.Incidents[line].Open() {
			return v.colour(tcell.ColorRed)
		}
		return tcell.StyleDefault
	case ViewClaims, ViewPods, ViewNamespaces:
		return v.styleOf(v.chosen.holders(v.View)[line].State)
	case ViewDevices:
	}
	return v.styleOf(v.chosen.Devices[line].State)
}

func (v *screen) styleOf(s ledger.State) tcell.Style {
	switch present.StateClass(s) {
	case "bad":
		return v.colour(tcell.ColorRed)
	case "warn":
		return v.colour(tcell.ColorYellow)
	case "good":
		return v.colour(tcell.ColorGreen)
	default:
		return tcell.StyleDefault
	}
}

func (v *screen) colour(c tcell.Color) tcell.Style {
	if !v.colours {
		return tcell.StyleDefault
	}
	return tcell.StyleDefault.Foreground(c)
}

// put writes a line, cut to the width of the terminal.
func (v *screen) put(y int, text string, style tcell.Style) { v.putAt(0, y, text, style) }

func (v *screen) putAt(x, y int, text string, style tcell.Style) {
	width, _ := v.terminal.Size()
	for graphemes := uniseg.NewGraphemes(cut(text, width-x)); graphemes.Next(); {
		runes := graphemes.Runes()
		v.terminal.SetContent(x, y, runes[0], runes[1:], style)
		x += graphemes.Width()
	}
}
