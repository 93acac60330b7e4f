package query

import (
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

func (k *checker) call(e *parser.Call) Answer {
	var args []Answer
	for _, arg := range e.Args {
		args = append(args, k.expr(arg))
	}
	switch e.Func.Name {
	case "time":
		return Answer{Unit: Unit{Seconds: 1, Scale: 1, Point: true}, scalar: true}
	case "timestamp":
		return Answer{Unit: Unit{Seconds: 1, Scale: 1, Point: true}, Labels: args[0].Labels, open: args[0].open}
	case "rate", "irate", "deriv":
		a := args[0]
		a.Unit = a.Unit.per(Unit{Seconds: 1, Scale: 1})
		return a
	case "changes", "resets", "count_over_time", "present_over_time":
		a := args[0]
		a.Unit, a.Native, a.Observed = counts(), false, Unit{}
		return a
	case "absent", "absent_over_time":
		return Answer{Unit: counts(), Labels: equalities(e.Args[0])}
	case "vector":
		return Answer{Unit: Unit{Unknown: true}}
	case "scalar":
		return Answer{Unit: args[0].Unit, scalar: true}
	case "histogram_quantile", "histogram_fraction":
		return k.quantile(e, args[len(args)-1])
	case "histogram_count", "histogram_sum", "histogram_avg":
		return k.total(e, args[0])
	case "label_replace", "label_join":
		return k.relabelled(e, args[0])
	case "sqrt":
		a := args[0]
		a.Unit = Unit{Unknown: true}
		return a
	case "quantile_over_time":
		return args[1]
	case "increase", "delta", "idelta", "sum_over_time", "avg_over_time", "max_over_time", "min_over_time",
		"last_over_time", "clamp", "clamp_min", "clamp_max", "sort", "sort_desc", "abs", "round", "floor", "ceil":
		return args[0]
	default:
		k.fail("the unit of %s() is unknown", e.Func.Name)
		return Answer{Unit: Unit{Unknown: true}}
	}
}

// equalities returns the labels that absent gives its result: those that must have one value.
func equalities(e parser.Expr) []string {
	selector, ok := e.(*parser.VectorSelector)
	if !ok {
		return nil
	}
	var out []string
	for _, m := range selector.LabelMatchers {
		if m.Type == labels.MatchEqual && m.Name != model.MetricNameLabel {
			out = append(out, m.Name)
		}
	}
	return out
}

// quantile describes a quantile of histograms, native or classic, or the fraction of what they
// count that is within bounds.
func (k *checker) quantile(e *parser.Call, histograms Answer) Answer {
	out := histograms
	out.Unit, out.Native, out.Observed = histograms.Observed, false, Unit{}
	if e.Func.Name == "histogram_fraction" {
		out.Unit = share()
	}
	switch {
	case histograms.Observed == (Unit{}):
		k.fail("%s is of no histogram", e)
	case !histograms.Native && !histograms.Has("le"):
		k.fail("%s has no buckets: the label le is missing", e)
	case !histograms.Native:
		out.Labels = slices.DeleteFunc(slices.Clone(histograms.Labels), func(l string) bool { return l == "le" })
	}
	return out
}

// total describes what native histograms count, the sum of it, or the mean.
func (k *checker) total(e *parser.Call, histograms Answer) Answer {
	if !histograms.Native {
		k.fail("%s is of no native histogram", e)
	}
	out := histograms
	out.Native, out.Observed = false, Unit{}
	switch e.Func.Name {
	case "histogram_sum":
		out.Unit = histograms.Observed.times(histograms.Unit)
	case "histogram_avg":
		out.Unit = histograms.Observed
	}
	return out
}

func (k *checker) relabelled(e *parser.Call, a Answer) Answer {
	text := func(i int) string {
		s, ok := e.Args[i].(*parser.StringLiteral)
		if !ok {
			return ""
		}
		return s.Val
	}
	sources := []int{3}
	if e.Func.Name == "label_join" {
		sources = nil
		for i := 3; i < len(e.Args); i++ {
			sources = append(sources, i)
		}
	}
	for _, i := range sources {
		if source := text(i); source != "" && !a.Has(source) {
			k.fail("%s takes the label %q, which does not exist", e.Func.Name, source)
		}
	}
	if text(1) == "le" { // a number that was a label
		a.Observed = counts()
	}
	a.Labels = append(slices.Clone(a.Labels), text(1))
	return a
}
