package e2e

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The exporter reports the events that the demo plays.
func TestStories(t *testing.T) {
	ctx, address, end := startDemo(t, 3*time.Minute)
	defer end()
	ask := func(t *testing.T, path string) string {
		t.Helper()
		if ctx.Err() != nil {
			t.Fatal("not within the time of the demo")
		}
		time.Sleep(100 * time.Millisecond)
		return get(ctx, "http://"+address+path)
	}
	for name, story := range map[string]func(t *testing.T, ask func(t *testing.T, path string) string){
		"peaks and throttling": testPeaksAndThrottling,
		"fault of a process":   testFaultOfProcess,
		"oversized":            testOversized,
	} {
		t.Run(name, func(t *testing.T) { story(t, ask) })
	}
}

// Between two scrapes a checkpoint takes 7 GiB for 2 s, and its GPUs are slowed down by their power
// limit.
func testPeaksAndThrottling(t *testing.T, ask func(t *testing.T, path string) string) {
	const spike = 7 << 30
	for {
		metrics := ask(t, "/metrics")
		of := func(family string) float64 { return value(metrics, family, "llm-pretrain-0-gpus", "gpu-0") }
		used, peak := of("dra_claim_memory_used_bytes"), of("dra_claim_memory_used_peak_bytes")
		if used > 0 && peak == used+spike && of("dra_claim_throttled_seconds_total") > 0 {
			return
		}
	}
}

// An XID names a process of one of two claims that share a GPU: it hits only that claim.
func testFaultOfProcess(t *testing.T, ask func(t *testing.T, path string) string) {
	const family = "dra_claim_last_error_timestamp_seconds"
	metrics := ask(t, "/metrics")
	for value(metrics, family, "embedder-0-gpu", "gpu-7") == 0 {
		metrics = ask(t, "/metrics")
	}
	other := value(metrics, family, "captioner-0-gpu", "gpu-7")
	memory := value(metrics, "dra_claim_memory_used_bytes", "captioner-0-gpu", "gpu-7")
	if other != 0 || memory == 0 {
		t.Errorf("the other claim, which uses %v bytes, had an XID at %v", memory, other)
	}
}

// A claim is busy and too large: 15 % and 11.5 of 80 GiB. 13 GiB of the GPU that is shared by
// memory have 16.25 % of its compute, 15.8 % are needed with the margin of 5 %. There is advice
// after 20 s here, not after a day.
func testOversized(t *testing.T, ask func(t *testing.T, path string) string) {
	unused := 0.
	for unused == 0 {
		unused = value(ask(t, "/metrics"), "dra_claim_fit_unused_ratio", "tagger-0-gpu", "gpu-2")
	}
	const text = "gpu-2, 80 GiB: peak 11.5 GiB and p99.9 activity 16 % of "
	const would = ", read each second: memory=13Gi fits; 84 % unused"
	if report := ask(t, "/api/v1/fit"); unused != 1-13./80 || !strings.Contains(report, text) ||
		!strings.Contains(report, would) {
		t.Errorf("%v of it is unused, and the report does not have %q and %q: %s", unused, text, would, report)
	}
}

func get(ctx context.Context, url string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return ""
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	body, _ := io.ReadAll(response.Body) // what is missing is asked for again
	return string(body)
}

// startDemo builds the demo and runs it for at most this time. end stops it and waits for its end.
func startDemo(t *testing.T, most time.Duration) (ctx context.Context, address string, end func()) {
	t.Helper()
	demo := filepath.Join(t.TempDir(), "demo")
	root := filepath.Join("..", "..", "..")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", root, "-o", demo, "./test/demo")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	address = live.FreeAddress(t)
	ctx, stop := context.WithTimeout(t.Context(), most)
	run := exec.Command(demo, "--listen="+address) // without a context: it is interrupted below, not killed
	var stderr strings.Builder
	run.Stderr = &stderr
	must.Do(t, run.Start())
	return ctx, address, func() {
		stop()
		if err := errors.Join(run.Process.Signal(os.Interrupt), run.Wait()); err != nil {
			t.Errorf("%v: %s", err, &stderr)
		}
	}
}

// value returns the value of the first series of a family with the claim and the device, 0 if there
// is none.
func value(metrics, family, claim, device string) float64 {
	line := regexp.MustCompile(`(?m)^` + family + `{[^}]*"` + claim + `[^}]*device="` + device + `"[^}]*} (.*)$`)
	found := line.FindStringSubmatch(metrics)
	if found == nil {
		return 0
	}
	v, _ := strconv.ParseFloat(found[1], 64) // 0
	return v
}
