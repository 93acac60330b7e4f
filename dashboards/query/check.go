package query

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

// Answer describes the result of an expression.
type Answer struct {
	Unit   Unit
	Labels []string // that the series have or may have
	// Merged is whether a value is of several devices or nodes: an aggregation drops a label that
	// distinguishes them.
	Merged bool

	// Native is whether the values are native histograms. Unit is then that of their counts.
	Native bool
	// Observed is the unit of the values that native histograms, or classic buckets, count.
	Observed Unit

	open   bool // labels that flags copy are possible too
	scalar bool
	number float64 // of a constant
	fixed  bool    // it is a constant
	one    bool    // every value is 1
}

// Has reports whether the series may have the label.
func (a Answer) Has(label string) bool {
	return slices.Contains(a.Labels, label) ||
		a.open && (strings.HasPrefix(label, "label_") || strings.HasPrefix(label, "annotation_"))
}

// Check parses an expression and describes its result. The error names everything that is not in
// the catalog and every operation on incompatible units.
func (c Catalog) Check(expression string) (Answer, error) {
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
	if err != nil {
		return Answer{}, fmt.Errorf("parse %s: %w", expression, err)
	}
	k := checker{catalog: c}
	answer := k.expr(parsed)
	answer.Merged = k.merged
	if err := errors.Join(k.errs...); err != nil {
		return Answer{}, fmt.Errorf("check %s: %w", expression, err)
	}
	return answer, nil
}

// checker walks an expression from its leaves.
type checker struct {
	catalog Catalog
	errs    []error
	merged  bool
}

func (k *checker) fail(format string, args ...any) {
	k.errs = append(k.errs, fmt.Errorf(format, args...))
}

func (k *checker) expr(e parser.Expr) Answer {
	switch e := e.(type) {
	case *parser.NumberLiteral:
		return Answer{Unit: counts(), scalar: true, fixed: true, number: e.Val}
	case *parser.StringLiteral:
		return Answer{scalar: true}
	case *parser.ParenExpr:
		return k.expr(e.Expr)
	case *parser.StepInvariantExpr:
		return k.expr(e.Expr)
	case *parser.UnaryExpr:
		return k.expr(e.Expr)
	case *parser.SubqueryExpr:
		return k.expr(e.Expr)
	case *parser.MatrixSelector:
		return k.expr(e.VectorSelector)
	case *parser.VectorSelector:
		return k.selector(e)
	case *parser.AggregateExpr:
		return k.aggregation(e)
	case *parser.BinaryExpr:
		return k.binary(e)
	case *parser.Call:
		return k.call(e)
	default:
		k.fail("%T is not supported", e)
		return Answer{Unit: Unit{Unknown: true}}
	}
}

func (k *checker) selector(e *parser.VectorSelector) Answer {
	f, ok := k.catalog[e.Name]
	if !ok {
		k.fail("there is no metric %q", e.Name)
		return Answer{Unit: Unit{Unknown: true}}
	}
	a := Answer{
		Unit: f.Unit, Labels: slices.Concat(f.Labels, TargetLabels()), open: f.Open,
		Native: f.Native, Observed: f.Observed,
	}
	for _, m := range e.LabelMatchers {
		if m.Name != model.MetricNameLabel && !a.Has(m.Name) {
			k.fail("%s has no label %q", e.Name, m.Name)
		}
	}
	return a
}

func (k *checker) aggregation(e *parser.AggregateExpr) Answer {
	a := k.expr(e.Expr)
	for _, label := range e.Grouping {
		if !a.Has(label) && label != "le" {
			k.fail("%s groups by %q, which is not a label of %s", e.Op, label, e.Expr)
		}
	}
	switch e.Op {
	case parser.TOPK, parser.BOTTOMK, parser.LIMITK:
		return a // the series themselves
	case parser.COUNT, parser.GROUP, parser.COUNT_VALUES:
		a.Unit, a.one, a.Native, a.Observed = counts(), e.Op == parser.GROUP, false, Unit{}
	case parser.SUM:
		a.Unit.Share = false // a sum of shares may exceed 1
	default: // averages, quantiles and extremes keep the unit
	}
	in := a
	if e.Without {
		a.Labels = slices.DeleteFunc(slices.Clone(a.Labels), func(l string) bool { return slices.Contains(e.Grouping, l) })
	} else {
		a.Labels, a.open = e.Grouping, false
	}
	if e.Op == parser.COUNT_VALUES {
		if label, ok := e.Param.(*parser.StringLiteral); ok {
			a.Labels = append(slices.Clone(a.Labels), label.Val)
		}
	}
	k.checkScopes(e.Op, a.Labels, in.Has)
	if in.Has("device") && in.Has("node") && (!a.Has("device") || !a.Has("node")) {
		k.merged = true
	}
	return a
}

// scopes returns the labels without which a label identifies nothing: two nodes have devices of the
// same name, and two clusters have nodes, namespaces, claims and pods of the same name.
func scopes() map[string][]string {
	return map[string][]string{
		"node": {"cluster"}, "instance": {"cluster"}, "namespace": {"cluster"},
		"resourceclaim_name": {"cluster", "namespace"}, "pod": {"cluster", "namespace"},
		"device": {"cluster", "node", "driver", "pool"},
	}
}

// The labels that queries make in place of a device's node: the node, or the same value for a
// device that several nodes offer; and the name in the cluster of a device that several nodes can
// use.
const (
	scopeLabel    = "scope"
	clusterDevice = "cluster_device"
)

// checkScopes fails for labels that are kept without a label of their scope, which the series have.
func (k *checker) checkScopes(op parser.ItemType, kept []string, has func(label string) bool) {
	all := scopes()
	for _, label := range kept {
		for _, scope := range all[label] {
			if scope == "node" && (slices.Contains(kept, scopeLabel) || slices.Contains(kept, clusterDevice)) {
				continue
			}
			if has(scope) && !slices.Contains(kept, scope) {
				k.fail("%s keeps %q without %q: it merges what has the same name elsewhere", op, label, scope)
			}
		}
	}
}
