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
	"math"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
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

// dumper writes values as text: every exported field, floating-point numbers to the last bit.
type dumper struct{ out io.Writer }

func (d dumper) line(values ...any) { _, _ = fmt.Fprintln(d.out, values...) }

func (d dumper) print(values ...any) { _, _ = fmt.Fprint(d.out, values...) }

func (d dumper) snapshot(s *book.Snapshot) {
	for _, part := range []any{
		s.Devices, s.Claims, s.Pods, s.EarlierClaims, s.EarlierPods, s.Young, s.Plugins, s.ClaimInfos, s.PodInfos, s.Lives,
	} {
		d.value(part)
	}
	var periods []string
	for p := range s.Timeline.All() {
		periods = append(periods, fmt.Sprint(p.Device, p.Claim, p.ClaimUID, p.ShareID, p.Pod, p.PodUID, p.Admin,
			p.Attribution, sinceStart(p.From), sinceStart(p.To), p.FromDoubt, p.ToDoubt, p.Older))
	}
	slices.Sort(periods)
	d.value(periods)
}

func (d dumper) value(v any) {
	d.of(reflect.ValueOf(v))
	d.line()
}

// skipped reports whether a field is no result: the numbers of holds, and that of a claim in
// the order in which advice is computed.
func skipped(of reflect.Type, field string) bool {
	return of.Name() == "Hold" && (field == "ID" || field == "Of") || of.Name() == "Use" && field == "Number"
}

func (d dumper) of(v reflect.Value) {
	if !v.IsValid() {
		d.print("-")
		return
	}
	switch of := v.Interface().(type) {
	case time.Time:
		d.print(sinceStart(of))
		return
	case distribution.View:
		d.histogram(of.Histogram())
		return
	case distribution.Histogram:
		d.histogram(&of)
		return
	case fmt.Stringer:
		if v.Kind() != reflect.Pointer && v.Kind() != reflect.Struct {
			d.print(of.String())
			return
		}
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		d.of(v.Elem())
	case reflect.Struct:
		d.print("{")
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !skipped(v.Type(), f.Name) && !v.Field(i).IsZero() {
				if origin, is := reflect.TypeAssert[join.Origin](v.Field(i)); is {
					d.print("Source:", origin, " ")
					continue
				}
				d.print(f.Name, ":")
				d.of(v.Field(i))
				d.print(" ")
			}
		}
		d.print("}")
	case reflect.Slice, reflect.Array:
		d.print("[")
		for i := range v.Len() {
			d.of(v.Index(i))
			d.print("\n ")
		}
		d.print("]")
	case reflect.Map:
		d.print(len(v.MapKeys()))
	case reflect.Float64:
		_, _ = fmt.Fprintf(d.out, "%g(%x)", v.Float(), math.Float64bits(v.Float()))
	default:
		d.print(v.Interface())
	}
}

func (d dumper) histogram(h *distribution.Histogram) {
	// The order in which claims of one tick are added to a distribution is not determined, and so is
	// the last bit of its sum.
	_, _ = fmt.Fprintf(d.out, "%.9g %.9g %v %d", h.Seconds(), h.Sum(), h.Max(), h.Zero())
	for bucket, count := range h.Buckets() {
		d.print(" ", bucket, "=", count)
	}
}

func sinceStart(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return fmt.Sprint(int64(t.Sub(start())))
}
