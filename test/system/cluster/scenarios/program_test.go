package scenarios

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// programPath is the environment variable with the path of the exporter.
const programPath = "DRA_EXPORTER"

// program is a running exporter.
type program struct {
	*live.Program
	client *http.Client

	mu sync.Mutex

	// The last snapshot and exposition are cached, because many tests request the same ones.
	snapshot   *present.Report
	tag        string
	exposition []byte
	parsed     live.Metrics
}

// flags returns the flags of all exporters, whatever their sources.
func (w *world) flags() []string {
	return []string{
		"--web.listen-address=127.0.0.1:0",
		"--web.last-scrape-timeout=0s",
		"--node-name=" + node.Name,
		"--metrics.quantity-source=on",
		"--metrics.details=on",
		"--kubelet.root=" + w.cluster.KubeletRoot(),
		"--path.podlogs=" + w.cluster.PodLogs(),
		"--path.cdi=" + w.cluster.CDI(),
		"--path.sysfs=" + w.sysfs,
		"--path.procfs=" + w.procfs,
		"--counter.zero-hold=0s",
		"--retention=1h",
		"--histograms=off", // dra_exporter_series counts them, and they are not in the text format.
	}
}

// startExporter starts the exporter and waits until it is ready. The exporter stops when the test
// ends.
func startExporter(t *testing.T, args []string) *program {
	path := os.Getenv(programPath)
	must.That(t, path != "",
		"$%s does not name the exporter: run make test-e2e, or build it and say where it is", programPath)
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), "GOGC=400") // With the default GOGC, collection takes a quarter of its CPU time.
	p := &program{Program: live.Launch(t, cmd), client: &http.Client{
		Timeout: *waitLimit, Transport: &http.Transport{DisableCompression: true}, // Compression costs CPU time.
	}}
	t.Cleanup(p.client.CloseIdleConnections)
	eventually(t, "the exporter is ready", func() error {
		_, err := p.get("/readyz")
		return err
	})
	return p
}

func (p *program) get(path string) ([]byte, error) {
	body, _, err := p.getUnless("", path)
	return body, err
}

// getUnless sends a GET request with If-None-Match: tag. It returns the body and its entity tag;
// the body is nil if the tag still matches.
func (p *program) getUnless(tag, path string) (body []byte, tagged string, err error) {
	a, err := live.Ask(context.Background(), p.client, "http://"+p.Address+path, "If-None-Match", tag)
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("get %s: %w", path, err)
	case tag != "" && a.Status == http.StatusNotModified:
		return nil, tag, nil
	case a.Status != http.StatusOK:
		return nil, "", fmt.Errorf("get %s: status %d: %.300s", path, a.Status, a.Body)
	}
	return a.Body, a.Header.Get("Etag"), nil
}

// report returns the last snapshot. The caller must not change it.
func (p *program) report() (*present.Report, error) {
	p.mu.Lock()
	last, tag := p.snapshot, p.tag
	p.mu.Unlock()
	body, tag, err := p.getUnless(tag, "/api/v1/snapshot")
	if err != nil {
		return nil, err
	}
	if body == nil {
		return last, nil
	}
	var r present.Report
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, fmt.Errorf("decode the snapshot: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.snapshot, p.tag = &r, tag
	return &r, nil
}

// families scrapes the exporter. The caller must not change the result.
func (p *program) families() (live.Metrics, error) {
	body, err := p.get("/metrics")
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if bytes.Equal(body, p.exposition) {
		return p.parsed, nil
	}
	families, err := live.ParseMetrics(body)
	if err == nil {
		p.exposition, p.parsed = body, families
	}
	return families, err
}

// value returns the value of the only series with these labels. labels are alternating names and
// values.
func (p *program) value(name string, labels ...string) (float64, error) {
	families, err := p.families()
	if err != nil {
		return 0, err
	}
	rows := families.Rows(name, labels...)
	if len(rows) != 1 {
		return 0, fmt.Errorf("%d series of %s%q, want 1", len(rows), name, labels)
	}
	return live.ValueOf(rows[0]), nil
}

// has returns nil if the only series with these labels has the value want.
func (p *program) has(name string, want float64, labels ...string) error {
	got, err := p.value(name, labels...)
	if err == nil && got != want {
		err = fmt.Errorf("%s%q is %v, want %v", name, labels, got, want)
	}
	return err
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

// ticks waits until the exporter has made count more snapshots.
func (p *program) ticks(t *testing.T, count int) {
	var last time.Time
	seen := -1
	eventually(t, "there are new snapshots", func() error {
		r, err := p.report()
		if err != nil {
			return err
		}
		if r.Time.After(last) {
			last = r.Time
			seen++
		}
		if seen < count {
			return fmt.Errorf("%d of %d", seen, count)
		}
		return nil
	})
}

// waitLimit limits every wait for the cluster or the exporter. It allows for a busy machine.
var waitLimit = flag.Duration("wait-limit", 3*time.Minute, "how long a test waits for the cluster or the exporter")

// eventually calls is until it returns nil.
func eventually(t *testing.T, what string, is func() error) {
	progresses(t, what, func() (int, error) { return 0, is() })
}

// progresses is like eventually, but waits longer if the number that is returns changes within the
// limit.
func progresses(t *testing.T, what string, is func() (int, error)) {
	t.Helper()
	last, deadline := 0, time.Now().Add(*waitLimit)
	for ; ; time.Sleep(200 * time.Millisecond) {
		n, err := is()
		if err == nil {
			return
		}
		if n != last {
			last, deadline = n, time.Now().Add(*waitLimit)
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s: %v", *waitLimit, what, err)
		}
	}
}
