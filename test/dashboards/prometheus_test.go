package dashboards

import (
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

// server is a program that the test started, with its answers over HTTP.
type server struct{ url string }

// start starts a program until the test ends, and waits until it is ready.
func start(t *testing.T, ready, address string, environment []string, path string, args ...string) server {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), environment...)
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
			t.Logf("%s said:\n%s", filepath.Base(path), said)
		}
	})
	s := server{"http://" + address}
	await(t, 30*time.Second, path+" is ready", func() bool {
		response, err := http.Get(s.url + ready)
		if err != nil {
			return false
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		return response.StatusCode == http.StatusOK
	})
	return s
}

func await(t *testing.T, atMost time.Duration, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(atMost); !done(); time.Sleep(200 * time.Millisecond) {
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

// answer is one series of an answer: its labels and values.
type answer struct {
	labels map[string]string
	values []float64
}

// get asks Prometheus's API, and decodes the data of its answer.
func (s server) get(path string, parameters url.Values, data any) error {
	response, err := http.Get(s.url + path + "?" + parameters.Encode())
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil {
		return err
	}
	if body.Status != "success" {
		return fmt.Errorf("%s: %s", body.Status, body.Error)
	}
	return nil
}

// query evaluates an expression: now, or over the span before now in steps of two seconds.
func (s server) query(expr string, span time.Duration) ([]answer, error) {
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  *[2]any
			Values [][2]any
		}
	}
	path, parameters := "/api/v1/query", url.Values{"query": {expr}}
	if now := time.Now(); span > 0 {
		path = "/api/v1/query_range"
		parameters.Set("start", unixText(now.Add(-span)))
		parameters.Set("end", unixText(now))
		parameters.Set("step", "2")
	}
	if err := s.get(path, parameters, &data); err != nil {
		return nil, fmt.Errorf("query %s: %w", expr, err)
	}
	var out []answer
	for _, r := range data.Result {
		a := answer{labels: r.Metric}
		if r.Value != nil {
			r.Values = append(r.Values, *r.Value)
		}
		for _, v := range r.Values {
			value, err := strconv.ParseFloat(v[1].(string), 64)
			if err != nil {
				return nil, fmt.Errorf("query %s: %w", expr, err)
			}
			a.values = append(a.values, value)
		}
		out = append(out, a)
	}
	return out, nil
}

func unixText(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

// firing lists the alerts that fire, as NAME NAMESPACE/CLAIM, in one cluster, with their annotations.
func (s server) firing(t *testing.T, cluster string) map[string]map[string]string {
	t.Helper()
	var data struct {
		Alerts []struct {
			State               string
			Labels, Annotations map[string]string
		}
	}
	if err := s.get("/api/v1/alerts", nil, &data); err != nil {
		t.Fatal(err)
	}
	out := map[string]map[string]string{}
	for _, a := range data.Alerts {
		if a.State == "firing" && a.Labels["cluster"] == cluster {
			out[strings.TrimSpace(a.Labels["alertname"]+" "+a.Labels["namespace"]+"/"+a.Labels["resourceclaim_name"])] = a.Annotations
		}
	}
	return out
}
