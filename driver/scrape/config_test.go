package scrape

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/common/model"

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const minimal = `
endpoints:
- name: vendor
  url: http://127.0.0.1:9400/metrics
  match: {label: UUID, hardware: uuid}
  metrics:
  - {name: busy, quantity: utilization, scale: 0.01}
`

func TestParseConfig(t *testing.T) {
	c, err := ParseConfig([]byte(`
endpoints:
- name: dcgm-exporter
  url: https://127.0.0.1:9400/metrics
  interval: 10s
  timeout: 2s
  refresh: 0s
  driver: gpu.nvidia.com
  match: {label: UUID, hardware: uuid}
  metrics:
  - {name: DCGM_FI_DEV_GPU_UTIL, quantity: utilization, scale: 0.01}
  - {name: DCGM_FI_DEV_MEMORY_TEMP, quantity: temperature, labels: {sensor: memory}}
  - {name: DCGM_FI_DEV_XID_ERRORS, quantity: errors, labels: {kind: xid}, labels_from: {code: err_code}}
  tls_config: {ca_file: ca.crt, server_name: exporter}
  basic_auth: {username: scraper, password_file: /run/secret}
`), "/etc/dra-exporter")
	must.Do(t, err)
	e := c.Endpoints[0]
	if e.Client.TLSConfig.CAFile != "/etc/dra-exporter/ca.crt" || e.Client.BasicAuth.PasswordFile != "/run/secret" {
		t.Errorf("paths are %q and %q", e.Client.TLSConfig.CAFile, e.Client.BasicAuth.PasswordFile)
	}
	percent := 0.01
	want := Endpoint{
		Name: "dcgm-exporter", URL: "https://127.0.0.1:9400/metrics", endpoints: 1,
		Interval: model.Duration(10 * time.Second), Timeout: model.Duration(2 * time.Second),
		Driver: "gpu.nvidia.com", Match: Match{Label: "UUID", Hardware: "uuid"},
		Metrics: []Metric{
			{Name: "DCGM_FI_DEV_GPU_UTIL", Quantity: "utilization", Scale: &percent},
			{Name: "DCGM_FI_DEV_MEMORY_TEMP", Quantity: "temperature", Labels: map[string]string{"sensor": "memory"}},
			{
				Name: "DCGM_FI_DEV_XID_ERRORS", Quantity: "errors",
				Labels: map[string]string{"kind": "xid"}, LabelsFrom: map[string]string{"code": "err_code"},
			},
		},
	}
	expect.Equal(t, "", want, e, cmp.AllowUnexported(Endpoint{}), cmpopts.IgnoreFields(Endpoint{}, "Client"))
}

func TestParseConfigDefaults(t *testing.T) {
	for fields, want := range map[string][2]time.Duration{
		"": {5 * time.Second, 5 * time.Second}, "  interval: 2s\n": {2 * time.Second, 2 * time.Second},
		"  interval: 1m\n":                  {time.Minute, 5 * time.Second},
		"  interval: 2s\n  preset: xpumd\n": {2 * time.Second, 2 * time.Second},
	} {
		e := must.Get(ParseConfig([]byte(minimal+fields), ""))(t).Endpoints[0]
		got := [2]time.Duration{time.Duration(e.Interval), time.Duration(e.Timeout)}
		expect.That(t, got == want && e.Refresh == model.Duration(time.Minute), "%s: %v, refresh %v", fields, got, e.Refresh)
	}
}

// Each document of testdata/errors.yaml is wrong, with the error that its first line has.
func TestParseConfigErrors(t *testing.T) {
	content := must.Get(os.ReadFile(filepath.Join("testdata", "errors.yaml")))(t)
	documents := strings.Split(string(content), "---\n")
	expect.That(t, len(documents) >= 30, "%d documents", len(documents))
	for _, document := range documents {
		want, _, _ := strings.Cut(strings.TrimPrefix(document, "# "), "\n")
		t.Run(want, func(t *testing.T) {
			_, err := ParseConfig([]byte(document), "")
			expect.That(t, err != nil && err.Error() == want, "got  %v\nwant %s\n%s", err, want, document)
		})
	}
}

func TestPresets(t *testing.T) {
	for _, name := range presetNames() {
		t.Run(name, func(t *testing.T) {
			c, err := ParseConfig([]byte("endpoints: [{name: a, url: 'http://localhost/metrics', preset: "+name+"}]"), "")
			must.Do(t, err)
			if _, err := New(c.Endpoints[0], ""); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPresetOverride(t *testing.T) {
	c, err := ParseConfig([]byte(`
endpoints:
- name: a
  url: http://localhost/metrics
  preset: dcgm-exporter
  driver: hami-core-gpu.project-hami.io
  match: {label: pci_bus_id, hardware: pci}
  refresh: 10s
  metrics:
  - {name: DCGM_FI_DEV_POWER_USAGE, quantity: power, scale: 0.001}
  - {name: DCGM_FI_DEV_GPU_UTIL_RATIO, quantity: utilization}
`), "")
	must.Do(t, err)
	e := c.Endpoints[0]
	if e.Driver != "hami-core-gpu.project-hami.io" || e.Match.Label != "pci_bus_id" ||
		e.Refresh != model.Duration(10*time.Second) || e.Partition.Label != "GPU_I_ID" {
		t.Errorf("%+v", e)
	}
	first, powers := e.Metrics[1].Name, 0
	for _, m := range e.Metrics {
		if m.Name == "DCGM_FI_DEV_POWER_USAGE" {
			powers++
			if *m.Scale != 0.001 {
				t.Errorf("scale is %v", *m.Scale)
			}
		}
	}
	expect.That(t, first == "DCGM_FI_DEV_GPU_UTIL_RATIO" && powers == 1 && len(e.Metrics) >= 20,
		"second is %s, %d powers, %d metrics", first, powers, len(e.Metrics))
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scrape.yaml")
	config := strings.Replace(minimal, "match:", "tls_config: {ca_file: ca.crt}\n  match:", 1)
	must.Do(t, os.WriteFile(path, []byte(config), 0o600))
	c := must.Get(Load(path))(t)
	got, want := c.Endpoints[0].Client.TLSConfig.CAFile, filepath.Join(filepath.Dir(path), "ca.crt")
	expect.That(t, got == want, "CA file is %s, want %s", got, want)
	large := append(bytes.Repeat([]byte("# comment\n"), maxConfigBytes/10), "endpoints: []\n"...)
	must.Do(t, os.WriteFile(path+".large", large, 0o600))
	if _, err := Load(path + ".large"); err == nil || !errors.Is(err, sysfs.ErrTooLarge) {
		t.Errorf("error %v, want that the file is too large", err)
	}
	must.Do(t, syscall.Mkfifo(path+".pipe", 0o600))
	if _, err := Load(path + ".pipe"); !errors.Is(err, sysfs.ErrNotRegular) { // without waiting for a writer
		t.Errorf("error %v, want that the file is a pipe", err)
	}
	if _, err := Load(path + ".not"); err == nil || !strings.Contains(err.Error(), "read scrape configuration") {
		t.Errorf("error is %v", err)
	}
	_, err := New(c.Endpoints[0], "")
	expect.That(t, err != nil && strings.Contains(err.Error(), `endpoint "vendor": client settings`),
		"error of a CA file that is not there is %v", err)
}

// Whatever the input, an accepted configuration makes sources, and an error is one line.
func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(minimal))
	for _, name := range presetNames() {
		f.Add([]byte("endpoints: [{name: a, url: 'http://localhost/metrics', preset: " + name + "}]"))
	}
	f.Add([]byte("endpoints: [{name: a, url: 'http://b', match: {label: c, hardware: device}, driver: d, metrics: " +
		"[{name: e, quantity: errors, labels_from: {kind: f}}]}]"))
	f.Add([]byte("endpoints: [{<<: *a}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data, "/dir")
		if err != nil {
			expect.That(t, !strings.ContainsAny(err.Error(), "\n\r"), "error of several lines: %v", err)
			return
		}
		for _, e := range c.Endpoints {
			if _, err := compile(&e); err != nil {
				t.Errorf("accepted, but: %v", err)
			}
			expect.That(t, e.Interval >= minInterval && e.Timeout > 0 && e.Timeout <= e.Interval,
				"interval %v, timeout %v", e.Interval, e.Timeout)
		}
	})
}
