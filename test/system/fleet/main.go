// Command fleet measures the cost of each rule and of each panel with many nodes, in Prometheus's
// own engine over Prometheus's own database.
//
// The nodes are variations of the real program's exposition on the simulated node of test/demo:
// names differ from node to node, values change, and pods start and end.
//
//	go run . -nodes=10,100 [-against=DIR]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
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
	var against, save, older string
	nodes := numbers{10}
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Var(&nodes, "nodes", "numbers of nodes, separated by commas")
	flags.StringVar(&o.checkout, "checkout", o.checkout, "the tree whose program, rules and dashboards are measured")
	flags.StringVar(&against, "against", "", "another tree, measured before and compared, or a file that -save wrote")
	flags.StringVar(&save, "save", "", "write the results into this file, those of each number of nodes at once")
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
	run := func() error { return compare(ctx, o, against, save, nodes, stdout) }
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

// compare measures with each number of nodes, for one tree or two.
func compare(ctx context.Context, o options, against, save string, nodes []int, stdout io.Writer) error {
	before, err := newSubject(ctx, o, against)
	if err != nil {
		return err
	}
	after, err := newSubject(ctx, o, o.checkout)
	if err != nil {
		return err
	}
	var saved []*result
	for _, n := range nodes {
		was, err := before.measure(ctx, n)
		if err != nil {
			return err
		}
		r, err := after.measure(ctx, n)
		if err != nil {
			return err
		}
		printResult(stdout, r, was)
		if saved = append(saved, r); save != "" {
			if err := saveResults(save, saved); err != nil {
				return err
			}
		}
	}
	return nil
}

// subject is a tree and its template, or saved results.
type subject struct {
	options
	template *template
	known    []*result
}

// newSubject reads a file of results, or records the exposition of the program of a tree. Without a
// path, it returns a subject without results.
func newSubject(ctx context.Context, o options, path string) (*subject, error) {
	s := &subject{options: o}
	info, err := os.Stat(path)
	switch {
	case path == "":
		return s, nil
	case err != nil:
		return nil, fmt.Errorf("find what to measure: %w", err)
	case !info.IsDir():
		s.known, err = loadResults(path)
		return s, err
	}
	s.checkout = path
	exposed, err := record(ctx, path, o.lasting)
	if err == nil {
		s.template, err = parseTemplate(exposed)
	}
	return s, err
}

func (s *subject) measure(ctx context.Context, nodes int) (*result, error) {
	if s.template != nil {
		return s.options.measure(ctx, s.template, nodes)
	}
	for _, r := range s.known {
		if r.Nodes == nodes {
			return r, nil
		}
	}
	if s.known != nil {
		return nil, fmt.Errorf("the file of results has none of %d nodes", nodes)
	}
	return nil, nil //nolint:nilnil // nothing is compared
}
