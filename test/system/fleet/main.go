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
