// Command replay runs random histories of a node through the decision of who holds what, the join,
// the ledger and the flight recorder, and prints a digest of everything that comes out: counters,
// bounds, holding periods, receipts, incidents. Two versions of the program that print the same
// digests decide the same for the same input.
//
//	go run ./test/replay -histories=1000 > new.txt
//	cp -r test/replay OTHER-CHECKOUT/test/ && cd OTHER-CHECKOUT && go run ./test/replay -histories=1000 > old.txt
//	diff old.txt new.txt
//
// -only prints the results of one history as text, to find the first difference. A history has
// -ticks ticks. It begins from the seed of its number, so it does not depend on other histories.
package main

import (
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

func main() {
	histories := flag.Int("histories", 1000, "number of histories")
	first := flag.Int("first", 0, "number of the first history")
	ticks := flag.Int("ticks", 1000, "number of ticks of a history")
	every := flag.Int("every", 7, "number of ticks from one whole snapshot to the next")
	only := flag.Int("only", -1, "print the results of this history as text")
	flag.Parse()
	if *only >= 0 {
		if err := replay(os.Stdout, *only, *ticks, *every); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	failed := false
	for n := *first; n < *first+*histories; n++ {
		digest := fnv.New128a()
		if err := replay(digest, n, *ticks, *every); err != nil {
			fmt.Fprintf(os.Stderr, "history %d: %v\n", n, err)
			failed = true
		}
		fmt.Printf("%d %x\n", n, digest.Sum(nil))
	}
	if failed {
		os.Exit(1)
	}
}

// replay writes the results of a history.
func replay(out io.Writer, number, ticks, every int) error {
	n := newNode(uint64(number))
	for tick := range ticks {
		n.step()
		s, news, err := n.advance()
		if err != nil {
			return fmt.Errorf("tick %d: %w", tick, err)
		}
		d := dumper{out: out}
		d.line("tick", n.now.Sub(start()), s.Corrections, s.Forgotten)
		for _, part := range []any{s.Closed, s.Failures, news.Opened, news.Repeated, news.Ended, news.Receipts} {
			d.value(part)
		}
		if tick%every == 0 {
			d.snapshot(s)
		}
	}
	return nil
}
