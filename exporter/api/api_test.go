package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/program"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/simnode"
)

const (
	published          = "v1/snapshot.schema.json"
	publishedFit       = "v1/fit.schema.json"
	publishedHistory   = "v1/history.schema.json"
	publishedIncidents = "v1/incidents.schema.json"
	publishedReceipts  = "v1/receipts.schema.json"
	publishedSummary   = "v1/summary.schema.json"
)

// all returns the published schemas.
func all() []string {
	return []string{published, publishedFit, publishedHistory, publishedIncidents, publishedReceipts, publishedSummary}
}

// The published schemas are those of the types.
func TestPublished(t *testing.T) {
	t.Parallel()
	schemas := must.Get(Schemas())(t)
	expect.Is(t, len(schemas), len(all()), "schemas")
	for _, path := range all() {
		got := must.Get(os.ReadFile(path))(t)
		expect.That(t, bytes.Equal(got, schemas[path]), "%s is stale: go generate ./... in this folder", path)
	}
}

// closed returns a strict form of a published schema: objects have only the known fields, and words
// only the values of the lists.
func closed(t *testing.T, published string) *jsonschema.Schema {
	text := must.Get(os.ReadFile(published))(t)
	document := must.Get(jsonschema.UnmarshalJSON(bytes.NewReader(text)))(t)
	shut(document)
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	id := base + published
	must.Do(t, compiler.AddResource(id, document))
	schema := must.Get(compiler.Compile(id))(t)
	return schema
}

func shut(part any) {
	switch part := part.(type) {
	case []any:
		for _, p := range part {
			shut(p)
		}
	case map[string]any:
		for _, p := range part {
			shut(p)
		}
		if _, ok := part["properties"].(map[string]any); ok {
			part["additionalProperties"] = false
		}
		if words, ok := part["examples"]; ok {
			part["enum"] = words
		}
	}
}

// start starts an exporter on a node, which is stopped when the test ends. It returns its address,
// and a context that ends with it.
func start(t *testing.T, node *simnode.Node, flags ...string) (running context.Context, address string) {
	t.Helper()
	listen := live.FreeAddress(t)
	ctx, stop := context.WithCancel(context.Background())
	running, end := context.WithCancel(ctx)
	status := 0
	var log bytes.Buffer
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer end()
		args := slices.Concat(node.Args(), flags, []string{
			"--web.listen-address=" + listen, "--web.last-scrape-timeout=0s", "--log.level=warn",
		})
		status = program.Run(ctx, args, []program.Source{{
			Name: "sim", New: func(driver.Host) (driver.Source, error) { return node.Source(), nil },
		}}, io.Discard, &log)
	}()
	t.Cleanup(func() {
		stop()
		if <-ended; status != 0 {
			t.Errorf("exit status %d: %s", status, &log)
		}
	})
	return running, "http://" + listen
}

// ask asks an exporter until a function accepts its answer. The path depends on the answer before.
func ask(
	ctx context.Context, t *testing.T, address string, path func(last string) string, has func(string) bool,
) string {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	text := ""
	var err error
	for ; ctx.Err() == nil && !has(text); time.Sleep(100 * time.Millisecond) {
		if text, err = get(ctx, address+path(text)); err != nil {
			text = ""
		}
	}
	must.That(t, has(text), "the last answer is %q, %v", text, err)
	return text
}

func get(ctx context.Context, address string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("get %s: %s", address, response.Status)
	}
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// demo is a node with shared, partitioned, unhealthy, idle and oversized devices, and with one that
// has an XID every second. Pods start and end on it, the first within half a second.
type demo struct {
	*simnode.Node
	scenario simnode.Scenario
}

// newDemo returns the node without pods.
func newDemo(t *testing.T) demo {
	scenario := simnode.Demo(1, simnode.DefaultHang)
	scenario.Devices[1].XIDEvery = time.Second
	scenario.Visits[0].From, scenario.Visits[0].To = 0, 500*time.Millisecond
	node := must.Get(simnode.New(filepath.Join(t.TempDir(), "node"), 1, scenario.Devices, simnode.Options{}))(t)
	must.Do(t, node.Start())
	t.Cleanup(node.Close)
	return demo{node, scenario}
}

// play starts the pods.
func (d demo) play(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	played := make(chan error, 1)
	go func() { played <- d.scenario.Run(ctx, d.Node) }()
	t.Cleanup(func() { stop(); <-played })
}

// The program's answers fit the schemas, and have no fields that are not in a schema. With some
// change they do not fit.
func TestAnswers(t *testing.T) {
	t.Parallel()
	// A receipt is written at the latest when the retention ends. There is advice for claims that are
	// allocated while the exporter runs.
	node := newDemo(t)
	running, address := start(t, node.Node, "--sample.interval=500ms", "--fit.after=500ms", "--retention=500ms")
	ask(running, t, address, func(string) string { return "/readyz" }, func(text string) bool { return text != "" })
	node.play(t)
	// An incident that is requested by its ID contains its recording so far.
	id := regexp.MustCompile(`"id":"([^"]+)"`)
	incidents := func(last string) string {
		if found := id.FindStringSubmatch(last); found != nil && strings.Contains(last, `"hit":true`) {
			return "incidents?id=" + url.QueryEscape(found[1])
		}
		return "incidents"
	}
	for _, tt := range []struct {
		published, path string
		has             []string
		changes         [][2]string
	}{
		{published, "snapshot", []string{`"pods":[{`, `"attribution":"capacity"`, `"source":"sim"`}, [][2]string{
			{`"node":`, `"nodes":`},
			{`"attribution":"capacity"`, `"attribution":"by-hand"`},
			{`"allocatedSeconds":`, `"allocatedHours":`},
			{`"devices":[`, `"devices":[7,`},
			{`"since":"`, `"since":"at `},
		}},
		{publishedSummary, "summary", []string{`"claims":[{`, `"active":`, `"pods":["`}, [][2]string{
			{`"node":`, `"nodes":`},
			{`"claims":[`, `"claims":[7,`},
			{`"state":"`, `"state":7,"was":"`},
			{`"pods":["`, `"pods":[7,"`},
		}},
		{publishedHistory, "history?device=gpu-1", []string{
			`"of":"claim"`, `"of":"pod"`, `"rate":true`, `"holders":[{`,
		}, [][2]string{
			{`"times":[`, `"times":[7,`},
			{`"of":"pod"`, `"of":"house"`},
			{`"values":[`, `"values":["high",`},
			{`"rate":true`, `"speed":true`},
			{`"from":"`, `"from":"at `},
		}},
		{publishedIncidents, "", []string{`"hit":true`, `"series":[{`}, [][2]string{
			{`"count":`, `"number":`},
			{`"kind":"`, `"kind":"no_`},
			{`"hit":true`, `"hit":"hard"`},
			{`"recording":`, `"record":`},
			{`"onset":"`, `"onset":"at `},
			{`"detected":"`, `"found":"`},
			{`"device":{`, `"device":{"serial":"7",`},
		}},
		{publishedFit, "fit", []string{`"kind":"share"`, `"reason":"`}, [][2]string{
			{`"text":`, `"words":`},
			{`"kind":"share"`, `"kind":"coupon"`},
			{`"reason":"`, `"reason":"not_`},
			{`"unusedRatio":`, `"wasted":`},
		}},
		{publishedReceipts, "receipts", []string{`"quantity":"energy"`, `"peaks":[`}, [][2]string{
			{`"ChargePeriodEnd":"`, `"ChargePeriodEnd":"at `},
			{`"SubAccountName":`, `"SubAccount":`},
			{`"errorBound":`, `"error":`},
			{`"attribution":"`, `"attribution":7,"how":"`},
			{`"pods":[`, `"pods":["a",`},
		}},
	} {
		t.Run(tt.published, func(t *testing.T) {
			answer := ask(running, t, address, func(last string) string {
				if tt.path == "" {
					return "/api/v1/" + incidents(last)
				}
				return "/api/v1/" + tt.path
			}, func(text string) bool {
				return !slices.ContainsFunc(tt.has, func(part string) bool { return !strings.Contains(text, part) })
			})
			checkAnswer(t, tt.published, answer, tt.changes)
		})
	}
}

// checkAnswer checks that an answer fits a schema, and that after each of the changes it does not.
func checkAnswer(t *testing.T, published, answer string, changes [][2]string) {
	t.Helper()
	schema := closed(t, published)
	expect.OK(t, validate(schema, answer))
	for _, change := range changes {
		broken := strings.Replace(answer, change[0], change[1], 1)
		if broken == answer || validate(schema, broken) == nil {
			t.Errorf("%s instead of %s fits the schema", change[1], change[0])
		}
	}
}

func validate(schema *jsonschema.Schema, text string) error {
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}
