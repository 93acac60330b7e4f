package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"
)

// loadRules reads the groups of the shipped rules of a checkout.
func loadRules(checkout string) ([]rulefmt.RuleGroup, error) {
	content, err := os.ReadFile(filepath.Join(checkout, "dashboards", "out", "rules.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	file, errs := rulefmt.Parse(content, false, model.UTF8Validation, parser.NewParser(parser.Options{}),
		promslog.NewNopLogger())
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	return file.Groups, nil
}

// ruleName returns the name of a rule: its record or alert, and its labels.
func ruleName(r rulefmt.Rule) string {
	name := r.Record + r.Alert
	var parts []string
	for _, label := range slices.Sorted(maps.Keys(r.Labels)) {
		parts = append(parts, label+"="+r.Labels[label])
	}
	if len(parts) > 0 {
		name += "{" + strings.Join(parts, ",") + "}"
	}
	return name
}

// every is the interval of rules without one.
const every = time.Minute

// evaluate evaluates all groups at a time. It writes their records and the firing alerts as if each
// group had been evaluated regularly since the previous time, with the same result. It returns the
// cost of each rule, in order.
func evaluate(ctx context.Context, e engine, db *tsdb.DB, groups []rulefmt.RuleGroup, before, at time.Time,
) ([][]cost, error) {
	costs := make([][]cost, len(groups))
	for i, group := range groups {
		for _, rule := range group.Rules {
			result, c, err := e.instant(ctx, rule.Expr, at)
			if err == nil {
				err = writeResult(ctx, db, rule, result, before, at, intervalOf(group))
			}
			if err != nil {
				return nil, fmt.Errorf("rule %s: %w", ruleName(rule), err)
			}
			costs[i] = append(costs[i], c)
		}
	}
	return costs, nil
}

// again evaluates all groups at a time without writing. The cost of a rule becomes the lower
// processor time.
func again(ctx context.Context, e engine, groups []rulefmt.RuleGroup, at time.Time, costs [][]cost) error {
	for range repeated - 1 {
		for i, group := range groups {
			for j, rule := range group.Rules {
				_, c, err := e.instant(ctx, rule.Expr, at)
				if err != nil {
					return fmt.Errorf("rule %s: %w", ruleName(rule), err)
				}
				costs[i][j].Seconds = min(costs[i][j].Seconds, c.Seconds)
			}
		}
	}
	return nil
}

// intervalOf returns the interval of a group.
func intervalOf(group rulefmt.RuleGroup) time.Duration {
	if group.Interval > 0 {
		return time.Duration(group.Interval)
	}
	return every
}

// writeResult writes the samples of a rule after one time and until another.
func writeResult(ctx context.Context, db *tsdb.DB, rule rulefmt.Rule, result promql.Vector, after, until time.Time,
	interval time.Duration,
) error {
	app := db.Appender(ctx)
	builder := labels.NewBuilder(labels.EmptyLabels())
	for _, s := range result {
		builder.Reset(s.Metric)
		builder.Del(model.MetricNameLabel)
		if rule.Alert != "" {
			builder.Set(model.MetricNameLabel, "ALERTS").Set("alertname", rule.Alert).Set("alertstate", "firing")
			s.F = 1
		} else {
			builder.Set(model.MetricNameLabel, rule.Record)
		}
		for name, text := range rule.Labels {
			builder.Set(name, text)
		}
		lset := builder.Labels()
		at := until
		for at.Add(-interval).After(after) {
			at = at.Add(-interval)
		}
		for ; !at.After(until); at = at.Add(interval) {
			if _, err := app.Append(0, lset, at.UnixMilli(), s.F); err != nil {
				return errors.Join(fmt.Errorf("write %s: %w", lset, err), app.Rollback())
			}
		}
	}
	return app.Commit()
}
