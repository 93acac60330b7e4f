// Command fleet measures the rules and the dashboards with many nodes: what each rule and each
// panel takes, in Prometheus's own engine over Prometheus's own database.
//
// The nodes are variations of the real program's exposition on the simulated node of test/demo:
// names differ from node to node, values move, and pods come and go.
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
	o := options{checkout: "../.."}
	var against string
	nodes := numbers{10}
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Var(&nodes, "nodes", "numbers of nodes, separated by commas")
	flags.StringVar(&o.checkout, "checkout", o.checkout, "the tree whose program, rules and dashboards are measured")
	flags.StringVar(&against, "against", "", "another tree, measured before and compared")
	flags.StringVar(&o.boards, "boards", "", "regular expression of the dashboards to open; empty: all")
	flags.DurationVar(&o.history, "history", time.Hour, "length of the history")
	flags.DurationVar(&o.span, "range", time.Hour, "time range of the dashboards")
	flags.DurationVar(&o.long, "long", 0, "also open Fleet, Namespaces and Workloads over this time, from records alone, "+
		"such as 720h")
	flags.DurationVar(&o.lasting, "record", 30*time.Second, "how long the program runs before its exposition is taken")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil || flags.NArg() > 0:
		return exitUsage
	}
	if err := compare(ctx, o, against, nodes, stdout); err != nil {
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

// compare measures with each number of nodes, and both trees if there are two.
func compare(ctx context.Context, o options, against string, nodes []int, stdout io.Writer) error {
	trees := []string{o.checkout}
	if against != "" {
		trees = []string{against, o.checkout}
	}
	templates := make([]*template, len(trees))
	for i, tree := range trees {
		exposition, err := record(ctx, tree, o.lasting)
		if err == nil {
			templates[i], err = parseTemplate(exposition, time.Now(), o.lasting)
		}
		if err != nil {
			return err
		}
	}
	for _, n := range nodes {
		var results []*result
		for i, tree := range trees {
			o.checkout = tree
			r, err := o.measure(ctx, templates[i], n)
			if err != nil {
				return err
			}
			results = append(results, r)
		}
		printResults(stdout, results)
	}
	return nil
}
