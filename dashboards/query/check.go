package query

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// Answer describes the result of an expression.
type Answer struct {
	Unit   Unit
	Labels []string // that the series have or may have
	// Merged is whether a value is of several devices or nodes: an aggregation drops a label that
	// tells them apart.
	Merged bool

	// Copied is whether a series may be there several times: once for each target or server that
	// has it, since two scrape a node, or two servers of a pair keep what they recorded. Only
	// max, min and group over the labels of a series make one of them.
	Copied bool

	key    []string // the labels of which each combination is there at most once; none while copied
	open   bool     // labels that flags copy are possible too
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

// Key returns the labels of which each combination is there at most once.
func (a Answer) Key() []string { return a.key }

// Unique returns an error if a series of the result may be there several times, see Copied.
func (a Answer) Unique() error {
	if a.Copied {
		return errors.New("a series that two targets or servers have is there twice: take max by its labels")
	}
	return nil
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
		Unit: f.Unit, Labels: slices.Concat(f.Labels, TargetLabels()), open: f.Open, Copied: f.Key == nil,
		key: f.Key,
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
		if k, ok := e.Param.(*parser.NumberLiteral); ok && k.Val == 1 && !e.Without {
			a.key = e.Grouping
		}
		return a // the series themselves
	case parser.COUNT, parser.GROUP, parser.COUNT_VALUES:
		a.Unit, a.one = counts(), e.Op == parser.GROUP
	case parser.SUM:
		a.Unit.Share = false // a sum of shares may exceed 1
	default: // averages, quantiles and extremes keep the unit
	}
	in := a
	k.once(e, &a)
	if e.Without {
		a.Labels = slices.DeleteFunc(slices.Clone(a.Labels), func(l string) bool { return slices.Contains(e.Grouping, l) })
	} else {
		a.Labels, a.open = e.Grouping, false
	}
	if e.Op == parser.COUNT_VALUES {
		if label, ok := e.Param.(*parser.StringLiteral); ok {
			a.Labels = append(slices.Clone(a.Labels), label.Val)
			a.key = a.Labels
		}
	}
	k.checkScopes(e.Op, a.Labels, in.Has)
	if in.Has("device") && in.Has("node") && (!a.Has("device") || !a.Has("node")) {
		k.merged = true
	}
	return a
}

func all(names []string, is func(string) bool) bool {
	return !slices.ContainsFunc(names, func(l string) bool { return !is(l) })
}

// once sets the key of an aggregation's result. It fails where what is there several times counts
// several times.
func (k *checker) once(e *parser.AggregateExpr, a *Answer) {
	if a.Copied && e.Op != parser.MAX && e.Op != parser.MIN && e.Op != parser.GROUP {
		k.fail("%s counts what two targets or servers have twice: take max by the labels of %s first", e.Op, e.Expr)
	}
	perTarget := slices.Contains(e.Grouping, "instance") || slices.Contains(e.Grouping, "job")
	if a.Copied = a.Copied && (e.Without || perTarget); a.Copied {
		a.key = nil
		return
	}
	kept := func(label string) bool { return slices.Contains(e.Grouping, label) }
	if a.key == nil || !all(a.key, kept) {
		a.key = append([]string{}, e.Grouping...)
	}
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

// scopeLabel is a label that queries make: the node of a device, or the same value for a device
// that several nodes offer.
const scopeLabel = "scope"

// checkScopes fails for labels that are kept without a label of their scope, which the series have.
func (k *checker) checkScopes(op parser.ItemType, kept []string, has func(label string) bool) {
	all := scopes()
	for _, label := range kept {
		for _, scope := range all[label] {
			if scope == "node" && slices.Contains(kept, scopeLabel) {
				continue
			}
			if has(scope) && !slices.Contains(kept, scope) {
				k.fail("%s keeps %q without %q: it merges what has the same name elsewhere", op, label, scope)
			}
		}
	}
}

func (k *checker) binary(e *parser.BinaryExpr) Answer {
	left, merged := k.expr(e.LHS), k.merged
	right := k.expr(e.RHS)
	if e.Op == parser.LAND || e.Op == parser.LUNLESS {
		k.merged = merged // the right side has no values in the result
	}
	out := k.matched(e, left, right)
	k.paired(e, left, right, &out)
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
	case right.fixed || left.Unit.Fits(right.Unit):
		return left.Unit
	default:
		k.fail("%s adds %v and %v", e, left.Unit, right.Unit)
		return Unit{Unknown: true}
	}
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
		return Answer{Labels: intersection(left.Labels, right.Labels)}
	case m.On && !e.Op.IsSetOperator() && !e.Op.IsComparisonOperator():
		return Answer{Labels: m.MatchingLabels}
	default:
		return left
	}
}

// paired sets the key of the series that a binary operation gives. It fails where a series may find
// two partners, which is an error of the whole query.
func (k *checker) paired(e *parser.BinaryExpr, left, right Answer, out *Answer) {
	m := e.VectorMatching
	switch {
	case left.scalar || right.scalar || m == nil:
		vector := left
		if left.scalar {
			vector = right
		}
		out.Copied, out.key = vector.Copied, vector.key
		return
	case e.Op == parser.LAND || e.Op == parser.LUNLESS:
		out.Copied, out.key = left.Copied, left.key
		return
	case e.Op == parser.LOR:
		out.Copied = left.Copied || right.Copied
		out.key = left.key
		for _, label := range right.key {
			if !slices.Contains(out.key, label) {
				out.key = append(slices.Clone(out.key), label)
			}
		}
		if out.Copied {
			out.key = nil
		}
		return
	}
	unique := func(side string, a Answer) {
		others := slices.DeleteFunc(slices.Clone(a.key), func(l string) bool { return slices.Contains(m.MatchingLabels, l) })
		if a.Copied || m.On && len(others) > 0 {
			k.fail("the %s side of %s %s may have a series twice: take max by (%s) first", side, e.Op,
				m.Card, strings.Join(m.MatchingLabels, ", "))
		}
	}
	switch {
	case m.Card == parser.CardManyToOne:
		unique("right", right)
		out.Copied, out.key = left.Copied, left.key
	case m.Card == parser.CardOneToMany:
		unique("left", left)
		out.Copied, out.key = right.Copied, right.key
	case m.On:
		unique("left", left)
		unique("right", right)
		out.key = m.MatchingLabels
	default:
		if left.Copied != right.Copied {
			k.fail("%s compares all labels, and only one side has those of the target", e.Op)
		}
		out.Copied, out.key = left.Copied, left.key
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

func intersection(a, b []string) []string {
	var out []string
	for _, label := range a {
		if slices.Contains(b, label) {
			out = append(out, label)
		}
	}
	return out
}

func (k *checker) call(e *parser.Call) Answer {
	var args []Answer
	for _, arg := range e.Args {
		args = append(args, k.expr(arg))
	}
	switch e.Func.Name {
	case "time":
		return Answer{Unit: Unit{Seconds: 1, Scale: 1, Point: true}, scalar: true}
	case "timestamp":
		return Answer{
			Unit: Unit{Seconds: 1, Scale: 1, Point: true}, Labels: args[0].Labels, open: args[0].open,
			Copied: args[0].Copied, key: args[0].key,
		}
	case "rate", "irate", "deriv":
		a := args[0]
		a.Unit = a.Unit.per(Unit{Seconds: 1, Scale: 1})
		return a
	case "changes", "resets", "count_over_time", "present_over_time":
		a := args[0]
		a.Unit = counts()
		return a
	case "absent", "absent_over_time":
		return Answer{Unit: counts(), Labels: equalities(e.Args[0]), key: []string{}}
	case "vector":
		return Answer{Unit: Unit{Unknown: true}}
	case "scalar":
		return Answer{Unit: args[0].Unit, scalar: true}
	case "histogram_quantile":
		return k.quantile(e, args[1])
	case "label_replace", "label_join":
		return k.relabelled(e, args[0])
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

// quantile describes a quantile of a histogram. Its unit is that of the family of the buckets.
func (k *checker) quantile(e *parser.Call, buckets Answer) Answer {
	if !buckets.Has("le") {
		k.fail("%s has no buckets: the label le is missing", e)
	}
	if !strings.Contains(e.String(), "_seconds_bucket") {
		k.fail("the unit of %s is unknown", e)
	}
	notLe := func(labels []string) []string {
		return slices.DeleteFunc(slices.Clone(labels), func(l string) bool { return l == "le" })
	}
	return Answer{
		Unit: Unit{Seconds: 1, Scale: 1}, Labels: notLe(buckets.Labels), Copied: buckets.Copied, key: notLe(buckets.key),
	}
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
	a.Labels = append(slices.Clone(a.Labels), text(1))
	if a.key != nil && !slices.Contains(a.key, text(1)) {
		a.key = append(slices.Clone(a.key), text(1))
	}
	return a
}
