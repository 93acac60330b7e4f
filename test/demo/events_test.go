package main

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The demo plays what happens to a claim between two scrapes: its checkpoint takes 7 GiB for 2 s,
// and its GPUs are slowed down by their power limit.
func TestPeaksAndThrottling(t *testing.T) {
	ctx, address, end := startDemo(t, time.Minute)
	defer end()
	const spike = 7 << 30
	var used, peak, device, throttled float64
	for ctx.Err() == nil {
		metrics := get(ctx, "http://"+address+"/metrics")
		of := func(family string) float64 { return value(metrics, family, "llm-pretrain-0-gpus", "gpu-0") }
		used, peak = of("dra_claim_memory_used_bytes"), of("dra_claim_memory_used_peak_bytes")
		device, throttled = value(metrics, "dra_device_memory_used_peak_bytes", "", "gpu-0"),
			of("dra_claim_throttled_seconds_total")
		if used > 0 && peak == used+spike && device == peak && throttled > 0 {
			end()
		}
		time.Sleep(100 * time.Millisecond)
	}
	end()
	if !(used > 0 && peak == used+spike && device == peak && throttled > 0) {
		t.Errorf("used %v, peak %v, of the device %v, throttled for %v s", used, peak, device, throttled)
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

// startDemo runs the demo for so long at most. end ends it, and waits for that.
func startDemo(t *testing.T, most time.Duration) (ctx context.Context, address string, end func()) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), most)
	address = freeAddress(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if status, _, stderr := runDemoOn(ctx, t, address); status != 0 {
			t.Errorf("status %d: %s", status, stderr)
		}
	}()
	return ctx, address, func() { stop(); <-ended }
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

// The demo plays an XID that names a process of one of two claims that share a GPU: it hits that
// claim alone.
func TestFaultOfProcess(t *testing.T) {
	ctx, address, end := startDemo(t, 90*time.Second)
	defer end()
	var hit, other, memory float64
	for ctx.Err() == nil && hit == 0 {
		metrics := get(ctx, "http://"+address+"/metrics")
		hit = value(metrics, "dra_claim_last_error_timestamp_seconds", "embedder-0-gpu", "gpu-7")
		other = value(metrics, "dra_claim_last_error_timestamp_seconds", "captioner-0-gpu", "gpu-7")
		memory = value(metrics, "dra_claim_memory_used_bytes", "captioner-0-gpu", "gpu-7")
		time.Sleep(100 * time.Millisecond)
	}
	end()
	if hit == 0 || other != 0 || memory == 0 {
		t.Errorf("the last XID of the process's claim is at %v, of the other, which uses %v bytes, at %v", hit, memory, other)
	}
}

// The demo plays a claim that is busy and too large: 15 % and 11.5 of 80 GiB. 13 GiB of the GPU
// that is shared by memory have 16.25 % of its compute, 15.8 % are needed with the margin of 5 %.
// There is advice after 20 s here, not after an hour.
func TestOversized(t *testing.T) {
	ctx, address, end := startDemo(t, 2*time.Minute)
	defer end()
	var unused float64
	var report string
	for ctx.Err() == nil && unused == 0 {
		unused = value(get(ctx, "http://"+address+"/metrics"), "dra_claim_fit_unused_ratio", "tagger-0-gpu", "gpu-2")
		report = get(ctx, "http://"+address+"/api/v1/fit")
		time.Sleep(100 * time.Millisecond)
	}
	end()
	const text = "gpu-2, 80 GiB: peak 11.5 GiB and p99.9 activity 16 %: memory=13Gi would do; 84 % unused"
	if unused != 1-13./80 || !strings.Contains(report, text) {
		t.Errorf("%v of it is unused, and the report does not have %q: %s", unused, text, report)
	}
}
