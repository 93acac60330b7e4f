// Package query checks PromQL expressions against the exporter's metric families: every metric and
// label must exist. If a metric is renamed or removed, the generator of dashboards and rules fails.
// What expressions give is tested with Prometheus's engine (test/system/dashboards): that values
// are plausible in the unit of their panel, that devices of the same name are told apart, and that
// copies of a node count once.
package query

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
)

// Family is a metric that expressions may use.
type Family struct {
	Name   string
	Labels []string
	Native bool // the values are native histograms
	// Open is whether the family also has labels that flags copy from Kubernetes: label_*,
	// annotation_*.
	Open bool
}

// Catalog holds the metrics that expressions may use, by name.
type Catalog map[string]Family

// TargetLabels returns the labels that the scrape configuration and federation add to each series.
func TargetLabels() []string { return []string{"cluster", "node", "instance", "job"} }

// NewCatalog returns the exporter's families and the metrics of Prometheus and of inference servers
// that are used.
func NewCatalog() Catalog {
	c := Catalog{}
	for _, f := range slices.Concat(exposition.Families(driver.Standard()), exporter.SelfFamilies()) {
		for _, series := range families(f) {
			c.Add(series)
		}
	}
	for name, labels := range foreign() {
		c.Add(Family{Name: name, Labels: strings.Fields(labels)})
	}
	return c
}

// Add adds a family. It replaces one of the same name.
func (c Catalog) Add(f Family) { c[f.Name] = f }

// families returns the families of the series that Prometheus has of a family: of a histogram, a
// native one, and a classic one unless it is a distribution.
func families(f exposition.Family) []Family {
	out := Family{
		Name: f.Name, Labels: f.Labels, Native: f.Histogram, Open: f.Name == "dra_claim_info" || f.Name == "dra_pod_info",
	}
	if !f.Histogram || f.Spec != nil {
		return []Family{out}
	}
	return []Family{
		out,
		{Name: f.Name + "_sum", Labels: f.Labels},
		{Name: f.Name + "_count", Labels: f.Labels},
		{Name: f.Name + "_bucket", Labels: append(slices.Clone(f.Labels), "le")},
	}
}

// foreign returns the metrics of other programs, with their labels.
func foreign() map[string]string {
	const served = "namespace pod model_name"
	return map[string]string{
		"up": "", "scrape_duration_seconds": "", "process_cpu_seconds_total": "", "process_resident_memory_bytes": "",
		// vLLM, docs/usage/metrics.md. Triton's backend for it says model and version in place of
		// model_name and engine.
		"vllm:generation_tokens_total": "model engine " + served, "vllm:prompt_tokens_total": "model engine " + served,
		// SGLang, docs/references/production_metrics.md.
		"sglang:generation_tokens_total": served, "sglang:prompt_tokens_total": served,
		// Text Generation Inference, docs/source/reference/metrics.md: histograms of requests.
		"tgi_request_generated_tokens_sum": "namespace pod", "tgi_request_input_length_sum": "namespace pod",
		// Triton, docs/user_guide/metrics.md.
		"nv_inference_count": "namespace pod model version",
		// TensorRT-LLM (docs.nvidia.com/dynamo, TensorRT-LLM Observability): successful requests.
		"trtllm_request_success_total": "engine_type finished_reason " + served,
	}
}

// Answer describes the result of an expression.
type Answer struct {
	Labels []string // that the series have or may have
	// Merged is whether a value is of several devices or nodes: an aggregation drops a label that
	// distinguishes them.
	Merged bool
	// Records is whether all that it reads are records, whose names have colons.
	Records bool

	open   bool // labels that flags copy are possible too
	scalar bool
}

// Has reports whether the series may have the label.
func (a Answer) Has(label string) bool {
	return slices.Contains(a.Labels, label) ||
		a.open && (strings.HasPrefix(label, "label_") || strings.HasPrefix(label, "annotation_"))
}

// Check parses an expression and describes its result. The error names everything that is not in
// the catalog.
func (c Catalog) Check(expression string) (Answer, error) {
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
	if err != nil {
		return Answer{}, fmt.Errorf("parse %s: %w", expression, err)
	}
	k := checker{catalog: c, records: true}
	answer := k.expr(parsed)
	answer.Merged, answer.Records = k.merged, k.records
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
	records bool
}

func (k *checker) fail(format string, args ...any) {
	k.errs = append(k.errs, fmt.Errorf(format, args...))
}

func (k *checker) expr(e parser.Expr) Answer {
	switch e := e.(type) {
	case *parser.NumberLiteral, *parser.StringLiteral:
		return Answer{scalar: true}
	case *parser.ParenExpr:
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
		return Answer{}
	}
}

func (k *checker) selector(e *parser.VectorSelector) Answer {
	f, ok := k.catalog[e.Name]
	if !ok {
		k.fail("there is no metric %q", e.Name)
	}
	k.records = k.records && strings.Contains(e.Name, ":")
	a := Answer{Labels: slices.Concat(f.Labels, TargetLabels()), open: f.Open}
	for _, m := range e.LabelMatchers {
		if ok && m.Name != model.MetricNameLabel && !a.Has(m.Name) {
			k.fail("%s has no label %q", e.Name, m.Name)
		}
	}
	return a
}

func (k *checker) aggregation(e *parser.AggregateExpr) Answer {
	in := k.expr(e.Expr)
	for _, label := range e.Grouping {
		if !in.Has(label) {
			k.fail("%s groups by %q, which is not a label of %s", e.Op, label, e.Expr)
		}
	}
	if e.Op == parser.TOPK || e.Op == parser.BOTTOMK || e.Op == parser.LIMITK {
		return in // the series themselves
	}
	out := Answer{Labels: slices.Clone(e.Grouping)}
	if e.Without {
		out = in
		out.Labels = slices.DeleteFunc(slices.Clone(in.Labels), func(l string) bool { return slices.Contains(e.Grouping, l) })
	}
	if label, ok := e.Param.(*parser.StringLiteral); ok { // of count_values
		out.Labels = append(out.Labels, label.Val)
	}
	k.merged = k.merged || in.Has("device") && in.Has("node") && (!out.Has("device") || !out.Has("node"))
	return out
}

// binary describes the series that a binary operation gives.
func (k *checker) binary(e *parser.BinaryExpr) Answer {
	left, merged := k.expr(e.LHS), k.merged
	right := k.expr(e.RHS)
	if e.Op == parser.LAND || e.Op == parser.LUNLESS {
		k.merged = merged // the right side has no values in the result
	}
	m := e.VectorMatching
	switch {
	case left.scalar:
		return right
	case right.scalar || m == nil:
		return left
	}
	for _, label := range m.MatchingLabels {
		if m.On && (!left.Has(label) || !right.Has(label)) {
			k.fail("%s matches on %q, which is not a label of both sides", e.Op, label)
		}
	}
	switch {
	case m.Card == parser.CardManyToOne:
		return k.grouped(left, right, m.Include)
	case m.Card == parser.CardOneToMany:
		return k.grouped(right, left, m.Include)
	case e.Op == parser.LOR:
		both := slices.DeleteFunc(slices.Clone(left.Labels), func(label string) bool { return !right.Has(label) })
		return Answer{Labels: append(both, holderOf(left, right)...)}
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
	holders := []string{"resourceclaim_name", "pod"}
	if !slices.ContainsFunc(holders, left.Has) || !slices.ContainsFunc(holders, right.Has) {
		return nil
	}
	return slices.DeleteFunc(holders, func(label string) bool { return left.Has(label) == right.Has(label) })
}

// call describes the result of a function: the series of its argument that is none of numbers and
// texts, but for those below.
func (k *checker) call(e *parser.Call) Answer {
	out := Answer{scalar: e.Func.Name == "time"}
	for _, arg := range e.Args {
		if of := k.expr(arg); !of.scalar {
			out = of
		}
	}
	switch e.Func.Name {
	case "scalar":
		return Answer{scalar: true}
	case "vector":
		return Answer{}
	case "absent", "absent_over_time":
		return Answer{Labels: equalities(e.Args[0])}
	case "histogram_quantile", "histogram_fraction":
		out.Labels = slices.DeleteFunc(slices.Clone(out.Labels), func(l string) bool { return l == "le" })
	case "label_replace", "label_join":
		return k.relabelled(e, out)
	}
	return out
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

func (k *checker) relabelled(e *parser.Call, a Answer) Answer {
	texts := make([]string, len(e.Args))
	for i, arg := range e.Args {
		if text, ok := arg.(*parser.StringLiteral); ok {
			texts[i] = text.Val
		}
	}
	sources := texts[3:]
	if e.Func.Name == "label_replace" {
		sources = texts[3:4]
	}
	for _, source := range sources {
		if source != "" && !a.Has(source) {
			k.fail("%s takes the label %q, which does not exist", e.Func.Name, source)
		}
	}
	a.Labels = append(slices.Clone(a.Labels), texts[1])
	return a
}
