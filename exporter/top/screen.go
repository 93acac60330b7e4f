package top

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/rivo/uniseg"

	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// Show shows the rows on the terminal's alternate screen until ctx ends or a person quits. An
// exporter that does not answer is shown as stale, with its last rows.
func Show(ctx context.Context, c Config) error {
	screen, err := tcell.NewScreen()
	if err != nil {
		return fmt.Errorf("open the terminal: %w", err)
	}
	if err := screen.Init(); err != nil {
		return fmt.Errorf("open the terminal: %w", err)
	}
	defer screen.Fini()
	return newView(c, screen).run(ctx)
}

// view is the state of the screen. Everything in it belongs to the goroutine of run.
type view struct {
	Config
	screen  tcell.Screen
	colours bool
	fleet   *fleet
	all     []Row
	rows    []Row // filtered and sorted
	first   int   // the first row that is visible
	typing  bool  // the filter
}

func newView(c Config, screen tcell.Screen) *view {
	return &view{Config: c, screen: screen, colours: os.Getenv("NO_COLOR") == "", fleet: &fleet{}}
}

func (v *view) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, quit := make(chan tcell.Event), make(chan struct{})
	defer close(quit)
	go v.screen.ChannelEvents(events, quit)
	polled := make(chan *fleet)
	go v.poll(ctx, polled)
	clock := time.NewTicker(time.Second) // what is stale grows older
	defer clock.Stop()
	for {
		v.draw(time.Now())
		select {
		case <-ctx.Done():
			return nil
		case v.fleet = <-polled:
			v.all = v.fleet.rows()
			v.arrange()
		case event := <-events:
			switch e := event.(type) {
			case *tcell.EventKey:
				if v.press(e) {
					return nil
				}
			case *tcell.EventResize:
				v.screen.Sync()
			case nil:
				return nil // the terminal is gone
			}
		case <-clock.C:
		}
	}
}

// poll asks again and again, and hands over a copy of what is known.
func (v *view) poll(ctx context.Context, polled chan<- *fleet) {
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

func (v *view) arrange() {
	v.rows = Filter(v.all, v.Filter)
	Sort(v.rows, v.Order, v.Reverse)
}

// press handles a key and reports whether to quit.
func (v *view) press(e *tcell.EventKey) (quit bool) {
	if e.Key() == tcell.KeyCtrlC {
		return true
	}
	if v.typing {
		v.edit(e)
		return false
	}
	_, height := v.screen.Size()
	page := max(1, height-headLines-1)
	switch e.Key() {
	case tcell.KeyEscape:
		v.Filter = ""
		v.arrange()
	case tcell.KeyUp:
		v.first--
	case tcell.KeyDown:
		v.first++
	case tcell.KeyPgUp:
		v.first -= page
	case tcell.KeyPgDn:
		v.first += page
	case tcell.KeyHome:
		v.first = 0
	case tcell.KeyEnd:
		v.first = len(v.rows)
	case tcell.KeyRune:
		return v.command(e.Rune())
	default:
	}
	return false
}

func (v *view) command(key rune) (quit bool) {
	switch key {
	case 'q':
		return true
	case 'k':
		v.first--
	case 'j':
		v.first++
	case 's':
		orders := Orders()
		v.Order = orders[(slices.Index(orders, v.Order)+1)%len(orders)]
	case 'r':
		v.Reverse = !v.Reverse
	case 'w':
		if v.Format == FormatWide {
			v.Format = FormatTable
		} else {
			v.Format = FormatWide
		}
	case '/':
		v.typing = true
	}
	v.arrange()
	return false
}

// edit changes the filter.
func (v *view) edit(e *tcell.EventKey) {
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
	v.arrange()
}

// headLines are the lines above the rows: the heading, the troubles and the titles.
const headLines = 3

const help = "q quit  s sort  r reverse  / filter  w wide  ↑↓ scroll"

func (v *view) draw(now time.Time) {
	v.screen.Clear()
	width, height := v.screen.Size()
	shown := height - headLines - 1
	v.first = max(0, min(v.first, len(v.rows)-shown))
	v.put(0, v.Clean(v.fleet.heading())+"  "+Summary(v.all), tcell.StyleDefault.Bold(true))
	if troubles := v.fleet.troubles(now); len(troubles) > 0 {
		v.put(1, v.Clean(strings.Join(troubles, "; ")), v.colour(tcell.ColorRed))
	}
	table := Layout(v.rows, Columns(len(v.fleet.answers) > 1, v.Format == FormatWide), width, v.Clean)
	v.put(headLines-1, table.Titles, tcell.StyleDefault.Underline(true))
	for i := v.first; i < len(v.rows) && i-v.first < shown; i++ {
		v.put(headLines+i-v.first, table.Lines[i], v.styleOf(v.rows[i].State))
	}
	v.put(height-1, v.footer(), tcell.StyleDefault.Dim(true))
	v.screen.Show()
}

func (v *view) footer() string {
	if v.typing {
		return "filter: " + v.Clean(v.Filter) + "_"
	}
	out := "by " + string(v.Order)
	if v.Reverse {
		out += ", reversed"
	}
	if v.Filter != "" {
		out += fmt.Sprintf(", %d with %q", len(v.rows), v.Clean(v.Filter))
	}
	return out + "  " + help
}

func (v *view) styleOf(s ledger.State) tcell.Style {
	switch s {
	case ledger.StateUnhealthy:
		return v.colour(tcell.ColorRed)
	case ledger.StateQuiet, ledger.StateIdle, ledger.StateUnmeasured:
		return v.colour(tcell.ColorYellow)
	case ledger.StateActive:
		return v.colour(tcell.ColorGreen)
	default:
		return tcell.StyleDefault
	}
}

func (v *view) colour(c tcell.Color) tcell.Style {
	if !v.colours {
		return tcell.StyleDefault
	}
	return tcell.StyleDefault.Foreground(c)
}

// put writes a line, cut to the width of the screen.
func (v *view) put(y int, text string, style tcell.Style) {
	width, _ := v.screen.Size()
	x := 0
	for graphemes := uniseg.NewGraphemes(cut(text, width)); graphemes.Next(); {
		runes := graphemes.Runes()
		v.screen.SetContent(x, y, runes[0], runes[1:], style)
		x += graphemes.Width()
	}
}
