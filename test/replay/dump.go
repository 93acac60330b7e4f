package main

import (
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

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
