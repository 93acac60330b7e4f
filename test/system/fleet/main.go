// Command fleet measures the cost of each rule and of each panel with many nodes, in Prometheus's
// own engine over Prometheus's own database.
//
// The nodes are variations of the real program's exposition on the simulated node of test/demo:
// names differ from node to node, values change, and pods start and end.
//
//	go run . -nodes=10,100
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// The exit statuses.
const (
	exitFailure = 1
	exitUsage   = 2
)

// run measures, and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := options{checkout: "../../..", progress: stderr, began: time.Now()}
	var older string
	nodes := numbers{10}
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Var(&nodes, "nodes", "numbers of nodes, separated by commas")
	flags.StringVar(&o.checkout, "checkout", o.checkout, "the tree whose program, rules and dashboards are measured")
	flags.StringVar(&o.boards, "boards", "", "regular expression of the dashboards to open; empty: all")
	flags.StringVar(&o.answers, "answers", "", "write the answers to dashboards' queries into this file, to draw them")
	flags.DurationVar(&o.history, "history", time.Hour, "length of the history")
	flags.DurationVar(&o.span, "range", time.Hour, "time range of the dashboards")
	flags.DurationVar(&o.long, "long", 0, "also open Fleet, Namespaces and Workloads over this time, from records alone, "+
		"such as 720h")
	flags.DurationVar(&o.lasting, "record", 15*time.Second, "the time between the two expositions of the program")
	flags.StringVar(&older, "same", "", "measure nothing: compare what the rules of this older tree record of -history")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil || flags.NArg() > 0:
		return exitUsage
	}
	run := func() error { return o.measureAll(ctx, nodes, stdout) }
	if older != "" {
		run = func() error { return compareRules(ctx, o, older, stdout) }
	}
	if err := run(); err != nil {
		_, _ = fmt.Fprintf(stderr, "fleet: %v\n", err)
		return exitFailure
	}
	return 0
}

// numbers is a flag of numbers.
type numbers []int

func (n *numbers) String() string { return strings.Trim(fmt.Sprint([]int(*n)), "[]") }

func (n *numbers) Set(text string) error {
	*n = nil
	for part := range strings.SplitSeq(text, ",") {
		number, err := strconv.Atoi(part)
		if err != nil || number < 1 {
			return fmt.Errorf("%q is no number of nodes", part)
		}
		*n = append(*n, number)
	}
	return nil
}

// options are the options of a measurement.
type options struct {
	checkout      string
	boards        string // a regular expression
	answers       string // the file of what Grafana draws of them; empty: none
	history, span time.Duration
	lasting       time.Duration
	long          time.Duration // 0: the dashboards are not opened over a long time
	progress      io.Writer     // nil: no progress is printed
	began         time.Time
	limits        int // divides the limits of queries, see view
	// chosen are the values of variables that start with the first one that is offered, by
	// dashboard and name. Those that are missing are added: later fleets open the dashboard of the
	// same claim.
	chosen map[string]string
}

// measureAll measures with each number of nodes, and prints the results.
func (o options) measureAll(ctx context.Context, nodes []int, stdout io.Writer) error {
	exposed, err := record(ctx, o.checkout, o.lasting)
	if err != nil {
		return err
	}
	t, err := parseTemplate(exposed)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		r, err := o.measure(ctx, t, n)
		if err != nil {
			return err
		}
		r.print(stdout)
	}
	return nil
}

// result has the costs of a fleet.
type result struct {
	Tree             string
	Nodes            int
	Scraped, Head    int     // series in a scrape of all nodes, and in the database
	SamplesPerSecond float64 // scraped
	HeadBytes        uint64
	Written          float64 // seconds of processor time that writing the history took
	Groups           []section
	Boards           []section
}

// print prints first the sums, then each rule and each panel.
func (r *result) print(w io.Writer) {
	_, _ = fmt.Fprintf(w, "%s: %d nodes, %d series in a scrape, %.0f samples/s, %d series in the head, %.0f MB of heap, "+
		"written and recorded in %.0f s\n", r.Tree, r.Nodes, r.Scraped, r.SamplesPerSecond, r.Head,
		megabytes(int64(r.HeadBytes)), r.Written)
	sums := []section{r.minute(), r.boards("all dashboards", true), r.boards("all dashboards, as they open", false)}
	for _, s := range slices.Concat(sums, r.Groups, r.Boards) {
		s.print(w)
	}
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

// boards returns the cost of each dashboard, with collapsed rows or without.
func (r *result) boards(name string, folded bool) section {
	out := section{Name: name}
	for i := range r.Boards {
		of := r.Boards[i]
		of.Rows = slices.DeleteFunc(slices.Clone(of.Rows), func(r row) bool { return r.folded && !folded })
		out.Rows = append(out.Rows, row{Kind: panelRow, Name: of.Name, cost: of.total()})
	}
	return out
}

// section is a group of rules or a dashboard.
type section struct {
	Name  string
	Every time.Duration // how often the rules of a group are evaluated
	Rows  []row
}

// print prints the rows with their sum.
func (s *section) print(w io.Writer) {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(out, "\tCPU s\tsamples\tseries\tMB\t\t")
	sum := s.total()
	sum.Refused = ""
	for _, r := range slices.Concat([]row{{Name: s.Name, cost: sum}}, s.Rows) {
		name := r.Name
		if r.Refused != "" {
			name += ": " + r.Refused
		}
		_, _ = fmt.Fprintf(out, "\t%.3f\t%d\t%d\t%.2f\t  %s\n", r.Seconds, r.Samples, r.Series, megabytes(r.Bytes), name)
	}
	_ = out.Flush()
	_, _ = fmt.Fprintln(w)
}

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }

func (s *section) total() cost {
	var sum cost
	for _, r := range s.Rows {
		sum = sum.add(r.cost)
	}
	return sum
}

// row is a rule, or a query of a dashboard.
type row struct {
	Kind rowKind
	Name string
	cost
	limited bool // it would return more if its limits were not divided
	folded  bool // it is asked for when a collapsed row is opened
}

type rowKind int

const (
	ruleRow rowKind = iota
	variableRow
	annotationRow
	panelRow
)

const (
	// rulesEvery is how often the rules are evaluated while the history is written.
	rulesEvery = 20 * time.Minute
	// repeated is the number of evaluations of the rules at the end. The lowest cost of each
	// counts, since the garbage collector may run at any time.
	repeated = 3
)

// measure writes the history of a fleet, evaluates the rules, and opens the dashboards.
func (o options) measure(ctx context.Context, t *template, nodes int) (r *result, err error) {
	dir, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	groups, err := loadRules(o.checkout)
	if err != nil {
		return nil, err
	}
	r = &result{
		Tree: o.checkout, Nodes: nodes, Scraped: nodes * len(t.series),
		SamplesPerSecond: float64(nodes*len(t.series)) / scrape.Seconds(),
	}
	memory, began := heap(), processorTime()
	e := newEngine(db)
	end := t.at.Truncate(rulesEvery)
	f := &fleet{template: t, begin: end.Add(-o.history), churn: 20 * time.Minute}
	writers := f.writers(nodes)
	var costs [][]cost
	for at := f.begin; at.Before(end); at = at.Add(rulesEvery) {
		next := driver.Earlier(at.Add(rulesEvery), end)
		if err := history(ctx, db, writers, at, next); err != nil {
			return nil, err
		}
		o.say("%s, %d nodes: %v of %v are written", o.checkout, nodes, next.Sub(f.begin), o.history)
		runtime.GC()
		if costs, err = evaluate(ctx, e, db, groups, at, next); err != nil {
			return nil, err
		}
	}
	r.Written = (processorTime() - began).Seconds()
	r.Head, r.HeadBytes = int(db.Head().NumSeries()), heap()-memory
	if err := again(ctx, e, groups, end, costs); err != nil {
		return nil, err
	}
	o.say("%s, %d nodes: the rules are evaluated", o.checkout, nodes)
	for i, group := range groups {
		s := section{Name: group.Name, Every: intervalOf(group)}
		for j, rule := range group.Rules {
			s.Rows = append(s.Rows, row{Kind: ruleRow, Name: ruleName(rule), cost: costs[i][j]})
		}
		r.Groups = append(r.Groups, s)
	}
	if err := o.open(ctx, e, end, r); err != nil || o.long == 0 {
		return r, err
	}
	return r, o.openLong(ctx, e, end, r)
}

// say prints the progress of the measurement, if requested.
func (o options) say(format string, args ...any) {
	if o.progress != nil {
		_, _ = fmt.Fprintf(o.progress, "fleet: %s, after %.0f s (%.0f s of processors)\n", fmt.Sprintf(format, args...),
			time.Since(o.began).Seconds(), processorTime().Seconds())
	}
}

// open opens the dashboards.
func (o options) open(ctx context.Context, e engine, end time.Time, r *result) error {
	boards, err := loadBoards(o.checkout)
	if err != nil {
		return err
	}
	wanted, err := regexp.Compile(o.boards)
	if err != nil {
		return fmt.Errorf("parse the names of dashboards: %w", err)
	}
	drawn := map[string]answers{}
	for i := range boards {
		if !wanted.MatchString(boards[i].UID) {
			continue
		}
		runtime.GC()
		v := newView(e, end, o.span)
		v.limits, v.chosen = o.limits, o.chosen
		rows, err := v.look(ctx, &boards[i])
		if err != nil {
			return err
		}
		r.Boards = append(r.Boards, section{Name: boards[i].UID, Rows: rows})
		drawn[boards[i].UID] = v.drawn
		o.say("dashboard %s is open", boards[i].UID)
	}
	if o.answers == "" {
		return nil
	}
	content, err := json.Marshal(drawn)
	if err != nil {
		return fmt.Errorf("encode answers: %w", err)
	}
	return os.WriteFile(o.answers, content, 0o644)
}

// writers divides the nodes among the processors.
func (f *fleet) writers(nodes int) []*writer {
	count := min(runtime.GOMAXPROCS(0), nodes)
	var out []*writer
	for i := range count {
		out = append(out, newWriter(f, nodes*i/count, nodes*(i+1)/count))
	}
	return out
}

// heap returns the bytes of all objects that are in use.
func heap() uint64 {
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
