package query

import (
	"slices"

	"github.com/prometheus/prometheus/promql/parser"
)

func (k *checker) binary(e *parser.BinaryExpr) Answer {
	left, merged := k.expr(e.LHS), k.merged
	right := k.expr(e.RHS)
	if e.Op == parser.LAND || e.Op == parser.LUNLESS {
		k.merged = merged // the right side has no values in the result
	}
	out := k.matched(e, left, right)
	out.Native, out.Observed = left.Native || right.Native && e.Op == parser.MUL, left.Observed
	if out.Observed == (Unit{}) {
		out.Observed = right.Observed
	}
	switch {
	case e.Op.IsSetOperator():
		if e.Op == parser.LOR && !left.Unit.Fits(right.Unit) && (!right.one || left.Unit != share()) {
			k.fail("%v or %v: the units differ", left.Unit, right.Unit)
		}
		out.Unit = left.Unit
		if left.Unit.Unknown && e.Op == parser.LOR {
			out.Unit = right.Unit
		}
	case e.Op.IsComparisonOperator():
		if !left.fixed && !right.fixed && !left.Unit.Fits(right.Unit) {
			k.fail("%s compares %v with %v", e, left.Unit, right.Unit)
		}
		out.Unit = left.Unit
		if e.ReturnBool {
			out.Unit = counts()
		}
	default:
		out.Unit = k.arithmetic(e, left, right)
	}
	return out
}

func (k *checker) arithmetic(e *parser.BinaryExpr, left, right Answer) Unit {
	switch e.Op {
	case parser.MUL:
		return product(left, right)
	case parser.DIV:
		if right.fixed && right.number != 0 {
			return left.Unit.scaled(1 / right.number)
		}
		return left.Unit.per(right.Unit)
	case parser.ADD, parser.SUB:
		return k.sum(e, left, right)
	default:
		return Unit{Unknown: true}
	}
}

// product multiplies. A constant changes the scale; an info metric, or a value of 0 or 1, changes
// nothing.
func product(left, right Answer) Unit {
	switch {
	case right.fixed:
		return left.Unit.scaled(right.number)
	case left.fixed:
		return right.Unit.scaled(left.number)
	case right.Unit == counts():
		return left.Unit
	case left.Unit == counts():
		return right.Unit
	default:
		return left.Unit.times(right.Unit)
	}
}

// sum adds and subtracts. The difference of two times is a duration.
func (k *checker) sum(e *parser.BinaryExpr, left, right Answer) Unit {
	if e.Op == parser.SUB && left.Unit.Point && right.Unit.Point {
		u := left.Unit
		u.Point = false
		return u
	}
	switch {
	case left.fixed:
		return right.Unit
	case right.fixed || left.Unit.Fits(right.Unit) || left.Unit == share() && isRest(e):
		return left.Unit
	default:
		k.fail("%s adds %v and %v", e, left.Unit, right.Unit)
		return Unit{Unknown: true}
	}
}

// isRest reports whether an expression is what a sum of shares leaves of a whole.
func isRest(e *parser.BinaryExpr) bool {
	sum, ok := e.RHS.(*parser.AggregateExpr)
	return ok && sum.Op == parser.SUM && e.Op == parser.SUB
}

// matched returns the labels of the series that a binary operation gives.
func (k *checker) matched(e *parser.BinaryExpr, left, right Answer) Answer {
	switch {
	case left.scalar && right.scalar:
		return Answer{scalar: true}
	case left.scalar:
		return Answer{Labels: right.Labels, open: right.open}
	case right.scalar:
		return Answer{Labels: left.Labels, open: left.open}
	}
	m := e.VectorMatching
	if m == nil {
		return left
	}
	if m.On {
		for _, label := range m.MatchingLabels {
			if !left.Has(label) || !right.Has(label) {
				k.fail("%s matches on %q, which is not a label of both sides", e.Op, label)
			}
		}
		k.checkScopes(e.Op, m.MatchingLabels, func(label string) bool { return left.Has(label) && right.Has(label) })
	}
	switch {
	case m.Card == parser.CardManyToOne:
		return k.grouped(left, right, m.Include)
	case m.Card == parser.CardOneToMany:
		return k.grouped(right, left, m.Include)
	case e.Op == parser.LOR:
		return Answer{Labels: append(intersection(left.Labels, right.Labels), holderOf(left, right)...)}
	case m.On && !e.Op.IsSetOperator() && !e.Op.IsComparisonOperator():
		return Answer{Labels: m.MatchingLabels}
	default:
		return left
	}
}

func (k *checker) grouped(many, one Answer, include []string) Answer {
	for _, label := range include {
		if !one.Has(label) {
			k.fail("the 'one' side has no label %q to include", label)
		}
	}
	return Answer{Labels: slices.Concat(many.Labels, include), open: many.open}
}

// holderOf returns the labels of holders that only one side has: the holder of a device is a claim,
// or a pod without one, and a series has the label of its own.
func holderOf(left, right Answer) []string {
	labels := []string{"resourceclaim_name", "pod"}
	if !slices.ContainsFunc(labels, left.Has) || !slices.ContainsFunc(labels, right.Has) {
		return nil
	}
	return slices.DeleteFunc(labels, func(label string) bool { return left.Has(label) == right.Has(label) })
}

func intersection(a, b []string) []string {
	var out []string
	for _, label := range a {
		if slices.Contains(b, label) {
			out = append(out, label)
		}
	}
	return out
}
