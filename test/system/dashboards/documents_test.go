package dashboards

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/dra-exporter/dra-exporter/test/docs"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestDocuments evaluates the queries and the samples of the documents in a real Prometheus that
// scrapes the demo as in deployments/README.md.
func TestDocuments(t *testing.T) {
	t.Parallel()
	all := must.Get(docs.Read(filepath.Join("..", "..", "..")))(t)
	exporter := live.FreeAddress(t)
	prometheus := live.StartPrometheus(t, live.PrometheusOptions{Config: documentedScrape(t, all, exporter)})
	live.StartDemo(t, filepath.Join("..", "..", ".."), exporter)
	// TestLive evaluates those of the runbook, which need the rules.
	queries := slices.DeleteFunc(docs.Blocks(all, docs.PromQL),
		func(b docs.Block) bool { return b.Document == "dashboards/RUNBOOK.md" })
	expect.That(t, len(queries) >= 3 && len(sampleQueries(all)) >= 5,
		"the documents have only %d queries and %d samples", len(queries), len(sampleQueries(all)))
	queries = append(queries, sampleQueries(all)...)
	for _, q := range queries {
		if _, err := parser.NewParser(parser.Options{}).ParseExpr(q.Text); err != nil {
			t.Errorf("%s:%d: %v", q.Document, q.Line, err)
			continue
		}
		// A claim counts as idle only after some scrapes.
		live.Await(t, 2*time.Minute, fmt.Sprintf("%s:%d has an answer", q.Document, q.Line), func() error {
			got, err := prometheus.Query(t.Context(), q.Text, time.Now())
			if err == nil && len(got) == 0 {
				err = fmt.Errorf("no data: %s", q.Text)
			}
			return err
		})
	}
}

// sampleQueries returns a query for each sample that a document shows.
func sampleQueries(all []docs.Document) []docs.Block {
	var queries []docs.Block
	for _, b := range docs.Blocks(all, docs.Sample) {
		for i, line := range strings.Split(strings.TrimSpace(b.Text), "\n") {
			selector, _, _ := strings.Cut(strings.Replace(line, ",…", "", 1), "} ")
			queries = append(queries, docs.Block{
				Document: b.Document, Line: b.Line + i, Text: "last_over_time(" + selector + "}[5m])",
			})
		}
	}
	return queries
}

// documentedScrape returns the scrape configuration that is documented, for an exporter at an
// address, which it scrapes more often.
func documentedScrape(t *testing.T, all []docs.Document, exporter string) string {
	t.Helper()
	for _, b := range docs.Blocks(all, docs.YAML) {
		if !strings.HasPrefix(b.Text, "scrape_configs:") {
			continue
		}
		often := strings.NewReplacer("node1:10985", exporter, "scrape_interval: 15s", "scrape_interval: 2s")
		config := often.Replace(b.Text)
		must.That(t, strings.Contains(config, exporter) && strings.Contains(config, "interval: 2s"),
			"%s:%d has another target or interval than the test knows:\n%s", b.Document, b.Line, b.Text)
		return config
	}
	t.Fatal("no document has a scrape configuration")
	return ""
}
