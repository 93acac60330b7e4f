package accuracy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// prometheus is a real Prometheus that scrapes the test's exporters.
type prometheus struct{ url string }

const prometheusConfig = `
global: {scrape_interval: %s, scrape_timeout: 10s}
scrape_configs:
- job_name: dra-exporter
  honor_labels: true
  static_configs:
%s`

// startPrometheus starts the program that $PROMETHEUS names, which scrapes the exporters by name and address until the
// test ends.
func startPrometheus(t *testing.T, interval time.Duration, exporters map[string]string, flags ...string) prometheus {
	t.Helper()
	program := os.Getenv("PROMETHEUS")
	if program == "" {
		t.Fatal("PROMETHEUS names no program: run make accuracy")
	}
	dir := t.TempDir()
	var targets strings.Builder
	for name, address := range exporters {
		fmt.Fprintf(&targets, "  - {targets: [%q], labels: {exporter: %q}}\n", address, name)
	}
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, fmt.Appendf(nil, prometheusConfig, interval, &targets), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append([]string{
		"--config.file=" + config, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + address, "--log.level=warn",
	}, flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()
		_ = log.Close()
		if t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Logf("prometheus %v said:\n%s", flags, said)
		}
	})
	p := prometheus{url: "http://" + address}
	await(t, 30*time.Second, "prometheus is ready", func() bool { return get(p.url+"/-/ready") == nil })
	return p
}

// sample is a value at a time.
type sample struct {
	at    time.Time
	value float64
}

// series is a series of an answer: its labels and samples, in order.
type series struct {
	labels  map[string]string
	samples []sample
}

// query evaluates an expression at a moment; a range selector gives the raw samples.
func (p prometheus) query(t *testing.T, expression string, at time.Time) []series {
	t.Helper()
	address := p.url + "/api/v1/query?" + url.Values{"query": {expression}, "time": {strconv.FormatFloat(float64(at.UnixMilli())/1e3, 'f', 3, 64)}}.Encode()
	response, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Value  *[2]any
				Values [][2]any
			}
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || answer.Status != "success" {
		t.Fatalf("query %s: %v %s", expression, err, answer.Error)
	}
	var out []series
	for _, r := range answer.Data.Result {
		s := series{labels: r.Metric}
		if r.Value != nil {
			r.Values = append(r.Values, *r.Value)
		}
		for _, v := range r.Values {
			value, err := strconv.ParseFloat(v[1].(string), 64)
			if err != nil {
				t.Fatalf("query %s: %v", expression, err)
			}
			s.samples = append(s.samples, sample{time.UnixMilli(int64(v[0].(float64) * 1e3)), value})
		}
		out = append(out, s)
	}
	return out
}

func get(address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", address, response.Status)
	}
	return nil
}

func await(t *testing.T, atMost time.Duration, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(atMost); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", atMost, what)
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
