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

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
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
	if err != nil {
		t.Fatal(err)
	}
	e := c.Endpoints[0]
	if e.Client.TLSConfig.CAFile != "/etc/dra-exporter/ca.crt" || e.Client.BasicAuth.PasswordFile != "/run/secret" {
		t.Errorf("paths are %q and %q", e.Client.TLSConfig.CAFile, e.Client.BasicAuth.PasswordFile)
	}
	zero, percent := time.Duration(0), 0.01
	want := Endpoint{
		Name: "dcgm-exporter", URL: "https://127.0.0.1:9400/metrics", endpoints: 1,
		Interval: 10 * time.Second, Timeout: 2 * time.Second, Refresh: &zero,
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
	if diff := cmp.Diff(want, e, cmp.AllowUnexported(Endpoint{}), cmpopts.IgnoreFields(Endpoint{}, "Client")); diff != "" {
		t.Error(diff)
	}
}

func TestParseConfigDefaults(t *testing.T) {
	for _, test := range []struct {
		name, fields      string
		interval, timeout time.Duration
	}{
		{"none", "", 5 * time.Second, 5 * time.Second},
		{"short interval", "\n  interval: 2s", 2 * time.Second, 2 * time.Second},
		{"long interval", "\n  interval: 1m", time.Minute, 5 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := ParseConfig([]byte(minimal[:len(minimal)-1]+strings.TrimSuffix(test.fields, "\n")+"\n"), "")
			if err != nil {
				t.Fatal(err)
			}
			if e := c.Endpoints[0]; e.Interval != test.interval || e.Timeout != test.timeout || e.Refresh != nil {
				t.Errorf("interval %v, timeout %v, refresh %v", e.Interval, e.Timeout, e.Refresh)
			}
		})
	}
}

func TestParseConfigErrors(t *testing.T) {
	endpoint := func(replacements ...string) string {
		return strings.NewReplacer(replacements...).Replace(minimal)
	}
	metric := func(m string) string { return endpoint("{name: busy, quantity: utilization, scale: 0.01}", m) }
	for _, test := range []struct{ name, config, want string }{
		{"no YAML", "endpoints: [", "yaml: line 1: did not find expected node content"},
		{"empty", "", "endpoints: got 0, want 1 to 100"},
		{"unknown top field", minimal + "\nglobal: {}", "line 9: field global not found"},
		{"unknown field", endpoint("url:", "location: x\n  url:"), `endpoint "vendor": line 4: field location not found`},
		{
			"unknown field of a metric", metric("{name: x, quantity: power, factor: 2}"),
			`endpoint "vendor": line 7: field factor not found`,
		},
		{"field twice", endpoint("url:", "url: x\n  url:"), `endpoint "vendor": line 5: field url already set`},
		{"wrong type", endpoint("vendor", "[a]"), `endpoint 1: line 3: cannot unmarshal !!seq into string`},
		{
			"bad interval", endpoint("url:", "interval: soon\n  url:"),
			`endpoint "vendor": interval: not a valid duration string: "soon"`,
		},
		{"short interval", endpoint("url:", "interval: 1ms\n  url:"), `endpoint "vendor": interval: 1ms is shorter than 1s`},
		{
			"long timeout", endpoint("url:", "timeout: 6s\n  url:"),
			`endpoint "vendor": timeout: 6s is not above 0 and within the interval, 5s`,
		},
		{
			"no name", endpoint("vendor", `""`),
			`endpoint 1: name: "" is not 1 to 63 letters, digits, dots, dashes and underscores`,
		},
		{
			"bad name", endpoint("vendor", "a/b"),
			`endpoint "a/b": name: "a/b" is not 1 to 63 letters, digits, dots, dashes and underscores`,
		},
		{"no url", endpoint("http://127.0.0.1:9400/metrics", `""`), `endpoint "vendor": url: "" is not an http or https URL`},
		{
			"file url", endpoint("http://127.0.0.1:9400", "file:///etc"),
			`endpoint "vendor": url: "file:///etc/metrics" is not an http or https URL`,
		},
		{
			"password in url", endpoint("http://", "http://a:b@"),
			`endpoint "vendor": url: a user or password belongs in basic_auth`,
		},
		{
			"no match", endpoint("match: {label: UUID, hardware: uuid}", ""),
			`endpoint "vendor": match: label: "" is not a label name`,
		},
		{
			"unknown hardware", endpoint("hardware: uuid", "hardware: mac"),
			`endpoint "vendor": match: hardware: "mac" is not one of uuid, pci, netdev, rdma, node, index, serial, device`,
		},
		{
			"device without driver", endpoint("hardware: uuid", "hardware: device"),
			`endpoint "vendor": match: hardware: device needs the field driver`,
		},
		{
			"index without driver", endpoint("hardware: uuid", "hardware: index"),
			`endpoint "vendor": match: hardware: index needs the field driver`,
		},
		{
			"second label", endpoint("hardware: uuid", "hardware: uuid, with: 'a b'"),
			`endpoint "vendor": match: with: "a b" is not a label name`,
		},
		{
			"pattern", endpoint("hardware: uuid", "hardware: uuid, pattern: '('"),
			`endpoint "vendor": match: pattern: error parsing regexp: missing closing ): ` + "`^(?:()$`",
		},
		{
			"long pattern", endpoint("hardware: uuid", "hardware: uuid, pattern: "+strings.Repeat("a", 257)),
			`endpoint "vendor": match: pattern: longer than 256 bytes`,
		},
		{
			"parts of nothing", endpoint("hardware: uuid", "hardware: uuid, per: {metric: info}"),
			`endpoint "vendor": match: per: needs a metric and a label`,
		},
		{
			"metric's match", endpoint("scale: 0.01", "match: {label: card, hardware: card}"),
			`endpoint "vendor": metrics: busy: match: hardware: "card" is not one of uuid, pci, netdev, rdma, node, index, ` +
				`serial, device`,
		},
		{
			"combine", endpoint("scale: 0.01", "combine: mean"),
			`endpoint "vendor": metrics: busy: combine: "mean" is neither max nor sum`,
		},
		{
			"combined counter", endpoint("quantity: utilization", "quantity: energy, combine: sum"),
			`endpoint "vendor": metrics: busy: combine: energy is a counter, whose sum would fall when a series disappears`,
		},
		{
			"partition's number", endpoint("url:", "partition: {label: a, number: 'a b'}\n  url:"),
			`endpoint "vendor": partition: number: "a b" is not a label name`,
		},
		{
			"partition's number without GPU", endpoint("url:", "partition: {label: a, number: b}\n  url:"),
			`endpoint "vendor": partition: number: only with match: hardware: serial`,
		},
		{
			"partition without label", endpoint("url:", "partition: {whole: [spx]}\n  url:"),
			`endpoint "vendor": partition: label: missing`,
		},
		{
			"both authorizations", endpoint("url:", "basic_auth: {username: a}\n  authorization: {credentials: b}\n  url:"),
			`endpoint "vendor": client settings: at most one of basic_auth, oauth2 & authorization must be configured`,
		},
		{
			"no metrics", endpoint("\n  - {name: busy, quantity: utilization, scale: 0.01}", " []"),
			`endpoint "vendor": metrics: got 0, want 1 to 1000`,
		},
		{
			"unknown preset", endpoint("url:", "preset: gpus\n  url:"),
			`endpoint "vendor": preset: "gpus" is not one of dcgm-exporter, dcgm-exporter-4.6, nvidia-gpu-exporter, ` +
				`hami-vgpu-monitor, amd-device-metrics-exporter, xpumd, gaudi-metric-exporter, neuron-monitor, ` +
				`gke-tpu-device-plugin, ascend-npu-exporter, furiosa-metrics-exporter, tenstorrent-telemetry, node-exporter`,
		},
		{
			"same name twice", minimal + strings.TrimPrefix(minimal, "\nendpoints:\n"),
			`endpoint "vendor": name: duplicate`,
		},
		{"metric without name", metric("{quantity: power}"), `endpoint "vendor": metrics: 1: name: "" is not a metric name`},
		{
			"bad metric name", metric("{name: a b, quantity: power}"),
			`endpoint "vendor": metrics: a b: name: "a b" is not a metric name`,
		},
		{
			"unknown quantity", metric("{name: x, quantity: volume}"),
			`endpoint "vendor": metrics: x: quantity: unknown quantity "volume"`,
		},
		{
			"quantity of drivers alone", metric("{name: x, quantity: health}"),
			`endpoint "vendor": metrics: x: quantity: unknown quantity "health"`,
		},
		{
			"zero scale", metric("{name: x, quantity: power, scale: 0}"),
			`endpoint "vendor": metrics: x: scale: 0 is not above 0 and finite`,
		},
		{
			"scale not a number", metric("{name: x, quantity: power, scale: .nan}"),
			`endpoint "vendor": metrics: x: scale: NaN is not above 0 and finite`,
		},
		{
			"label that is none", metric("{name: x, quantity: power, labels: {sensor: a}}"),
			`endpoint "vendor": metrics: x: labels: power has no label "sensor"`,
		},
		{
			"label from that is none", metric("{name: x, quantity: power, labels_from: {sensor: a}}"),
			`endpoint "vendor": metrics: x: labels_from: power has no label "sensor"`,
		},
		{
			"value outside a closed list", metric("{name: x, quantity: network_drops, labels: {direction: up}}"),
			`endpoint "vendor": metrics: x: labels: direction: "up" is not one of receive, transmit`,
		},
		{
			"closed list without value", metric("{name: x, quantity: network_drops}"),
			`endpoint "vendor": metrics: x: labels: network_drops needs direction, one of receive, transmit`,
		},
		{
			"label given twice", metric("{name: x, quantity: temperature, labels: {sensor: a}, labels_from: {sensor: b}}"),
			`endpoint "vendor": metrics: x: labels_from: sensor is also in labels`,
		},
		{
			"label from no label", metric("{name: x, quantity: temperature, labels_from: {sensor: a b}}"),
			`endpoint "vendor": metrics: x: labels_from: sensor: "a b" is not a label name`,
		},
		{
			"where no label", metric("{name: x, quantity: power, where: {a b: c}}"),
			`endpoint "vendor": metrics: x: where: "a b" is not a label name`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := ParseConfig([]byte(test.config), "")
			if err == nil {
				t.Fatal("no error")
			}
			if diff := cmp.Diff(test.want, err.Error()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPresets(t *testing.T) {
	for _, name := range presetNames() {
		t.Run(name, func(t *testing.T) {
			c, err := ParseConfig([]byte("endpoints: [{name: a, url: 'http://localhost/metrics', preset: "+name+"}]"), "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := New(c.Endpoints[0]); err != nil {
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
	if err != nil {
		t.Fatal(err)
	}
	e := c.Endpoints[0]
	if e.Driver != "hami-core-gpu.project-hami.io" || e.Match.Label != "pci_bus_id" || *e.Refresh != 10*time.Second ||
		e.Partition.Label != "GPU_I_ID" {
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
	if first != "DCGM_FI_DEV_GPU_UTIL_RATIO" || powers != 1 || len(e.Metrics) < 20 {
		t.Errorf("second is %s, %d powers, %d metrics", first, powers, len(e.Metrics))
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scrape.yaml")
	config := strings.Replace(minimal, "match:", "tls_config: {ca_file: ca.crt}\n  match:", 1)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Endpoints[0].Client.TLSConfig.CAFile, filepath.Join(filepath.Dir(path), "ca.crt"); got != want {
		t.Errorf("CA file is %s, want %s", got, want)
	}
	large := append(bytes.Repeat([]byte("# comment\n"), maxConfigBytes/10), "endpoints: []\n"...)
	if err := os.WriteFile(path+".large", large, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path + ".large"); err == nil || !errors.Is(err, sysfs.ErrTooLarge) {
		t.Errorf("error %v, want that the file is too large", err)
	}
	if err := syscall.Mkfifo(path+".pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path + ".pipe"); !errors.Is(err, sysfs.ErrNotRegular) { // without waiting for a writer
		t.Errorf("error %v, want that the file is a pipe", err)
	}
	if _, err := Load(path + ".not"); err == nil || !strings.Contains(err.Error(), "read scrape configuration") {
		t.Errorf("error is %v", err)
	}
	if _, err := New(c.Endpoints[0]); err == nil || !strings.Contains(err.Error(), `endpoint "vendor": client settings`) {
		t.Errorf("error of a CA file that is not there is %v", err)
	}
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
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error of several lines: %v", err)
			}
			return
		}
		for _, e := range c.Endpoints {
			if _, err := compile(&e); err != nil {
				t.Errorf("accepted, but: %v", err)
			}
			if e.Interval < minInterval || e.Timeout <= 0 || e.Timeout > e.Interval {
				t.Errorf("interval %v, timeout %v", e.Interval, e.Timeout)
			}
		}
	})
}
