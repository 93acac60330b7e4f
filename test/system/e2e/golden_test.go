package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

var update = flag.Bool("update", false, "update the golden files")

// Responses of a real kubelet, with only an inventory. The holders are known. The claim with admin
// access counts as a holder, since its admin access is unknown.
func TestGoldenKubelet(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	must.Do(t, n.kubelet.Set(recordedList(t)))
	p := start(t, goldenSources(t, n.flags(flags{
		"inventory.file": filepath.Join("testdata", "recorded", "resourceslices.yaml"),
	})))
	p.eventually("aware of the holders", func() bool { return holders(p) > 0 })
	checkGolden(t, "kubelet.prom", p.page("/metrics").Body)
}

// The same cluster later, with ResourceClaims and a vendor's exporter. Nothing is attributed to
// admin access, a device is divided by consumed capacity, and requests are known.
func TestGoldenClaims(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	must.Do(t, n.kubelet.Set(recordedLater(t)))
	n.mkdir("pods/team-a_cc-1_b983f273-4bba-4023-b1be-f3ef1ae4e797")
	inventory := n.write("inventory.yaml",
		recorded(t, "resourceslices.yaml")+"---\n"+recorded(t, "resourceclaims-all.yaml"))
	var exposition strings.Builder
	for i, id := range []string{uuid(0), uuid(1), uuid(4), uuid(5), "GPU-bbbbbbbb-0000-0000-0000-000000000000"} {
		fmt.Fprintf(&exposition,
			"utilization{uuid=%q} 0.%d\npower{uuid=%[1]q} %d00\nmemory{uuid=%[1]q} 1e9\ntemperature{uuid=%[1]q} 40\n", id, i+1,
			i+1)
	}
	config := n.scrapeConfig(endpoint("vendor", vendor(t, fixed(exposition.String()))))
	p := start(t, goldenSources(t, n.flags(flags{"inventory.file": inventory, "source.scrape.config": config})))
	p.eventually("charged", func() bool {
		return p.scrape().positive("dra_pod_energy_joules_total", "pod", "cc-1")
	})
	checkGolden(t, "claims.prom", p.page("/metrics").Body)
	expect.That(t, conserved(t, p.report()) != 0, "nothing was compared")
}

func recorded(t *testing.T, name string) string {
	data := must.Get(os.ReadFile(filepath.Join("testdata", "recorded", name)))(t)
	return string(data)
}

func recordedList(t *testing.T) *v1.ListPodResourcesResponse {
	return must.Get(podresourcestest.ParseList([]byte(recorded(t, "list.json"))))(t)
}

// recordedLater returns the kubelet's list at the time when the ResourceClaims were recorded. Since
// list.json, the claims with generated names had changed, multi had ended, and the pods of
// get-*.json had started. cc-2, whose claim is recorded, is not listed.
func recordedLater(t *testing.T) *v1.ListPodResourcesResponse {
	list := recordedList(t)
	list.PodResources = slices.DeleteFunc(list.PodResources, func(p *v1.PodResources) bool { return p.Name == "multi" })
	renamed := map[string]string{"single-gpu-gw4mb": "single-gpu-64qkp", "exporter-gpus-87rgk": "exporter-gpus-jn427"}
	for _, p := range list.PodResources {
		for _, c := range p.Containers {
			for _, claim := range c.DynamicResources {
				if name, ok := renamed[claim.ClaimName]; ok {
					claim.ClaimName = name
				}
			}
		}
	}
	for _, name := range []string{"get-cc-1.json", "get-cc-3.json", "get-extended.json"} {
		var got v1.GetPodResourcesResponse
		must.Do(t, protojson.Unmarshal([]byte(recorded(t, name)), &got))
		list.PodResources = append(list.PodResources, got.PodResources)
	}
	return list
}

// goldenSources returns the flags with all sources switched off whose own metrics the golden files
// do not have, so that a new source changes no golden file.
func goldenSources(t *testing.T, f flags) flags {
	help, err := command(t.Context(), []string{"--help"}).CombinedOutput()
	must.That(t, err == nil, "--help: %v: %s", err, help)
	found := regexp.MustCompile(`--\[no-\]source\.(\w+)\s`).FindAllSubmatch(help, -1)
	must.That(t, len(found) != 0, "--help has no source:\n%s", help)
	for _, m := range found {
		if name := string(m[1]); name != "nvml" && name != "netdev" && name != "cpu" {
			f["no-source."+name] = ""
		}
	}
	return f
}

// checkGolden compares an exposition with a golden file and checks it with promtool.
func checkGolden(t *testing.T, name string, exposition []byte) {
	lint(t, exposition)
	compareGolden(t, name, stable(exposition))
}

// compareGolden compares a text with a golden file.
func compareGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *update {
		must.Do(t, os.WriteFile(path, got, 0o644))
	}
	want := must.Get(os.ReadFile(path))(t)
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("it differs from %s (-want +got; -update updates it):\n%s", path, diff)
	}
}

// stable masks the values that differ from run to run, rounds the others, whose last bits differ
// from machine to machine, and removes the metrics of the Go runtime.
func stable(exposition []byte) []byte {
	volatile := regexp.MustCompile(`^(dra_\w+_(allocated|active|used|share)_seconds_total|dra_\w+_energy_joules_total|` +
		`dra_\w+_last_active_timestamp_seconds|dra_exporter_\w*timestamp_seconds|dra_exporter_source_duration_seconds\w*|` +
		`dra_exporter_longest_tick_seconds|` +
		`dra_exporter_build_info)(\{.*\})? `)
	labels := regexp.MustCompile(`^dra_exporter_build_info\{.*\}`)
	foreign := regexp.MustCompile(`^(# (HELP|TYPE) )?(go|process)_`)
	var out bytes.Buffer
	for line := range bytes.Lines(exposition) {
		if foreign.Match(line) {
			continue
		}
		if m := volatile.Find(line); m != nil {
			line = labels.ReplaceAll(append(bytes.Clone(m), "<masked>\n"...), []byte("dra_exporter_build_info{<masked>}"))
		} else if line[0] != '#' {
			line = rounded(line)
		}
		out.Write(line)
	}
	return out.Bytes()
}

// rounded rounds the value of a series to twelve digits.
func rounded(line []byte) []byte {
	at := bytes.LastIndexByte(line, ' ') + 1
	value, err := strconv.ParseFloat(string(bytes.TrimSpace(line[at:])), 64)
	if err != nil {
		return line
	}
	return fmt.Appendf(nil, "%s%.12g\n", line[:at], value)
}

// lint checks an exposition with promtool.
func lint(t *testing.T, exposition []byte) {
	promtool := os.Getenv("PROMTOOL")
	must.That(t, promtool != "", "PROMTOOL is not set: run make test-e2e")
	cmd := exec.CommandContext(t.Context(), promtool, "check", "metrics", "--extended")
	cmd.Stdin = bytes.NewReader(exposition)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	expect.That(t, err == nil && complaints.Len() <= 0, "promtool: %v: %s\n%s", err, &complaints, out)
}

// A node in migration from device plugins to DRA, as the kubelet lists it: a GPU of a claim and one
// of the plugin, one with time slicing, a MIG instance that is in no slice, and a virtual function.
// Each piece of hardware is one device.
func TestGoldenPlugins(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	list := must.Get(podresourcestest.ParseList([]byte(recorded(t, filepath.Join("..", "plugins", "list.json")))))(t)
	must.Do(t, n.kubelet.Set(list))
	const mig = "MIG-bbbbbbbb-0000-0000-0000-000000000001"
	var exposition strings.Builder
	for i, id := range []string{uuid(0), uuid(1), uuid(2), uuid(3), mig} {
		fmt.Fprintf(&exposition,
			"utilization{uuid=%q} 0.%d\npower{uuid=%[1]q} %d00\nmemory{uuid=%[1]q} 1e9\ntemperature{uuid=%[1]q} 40\n", id, i+1,
			i+1)
	}
	nic := slice("sriovnetwork.k8snetworkplumbingwg.io",
		[2]string{"vf-0", "{vfID: {int: 0}, pciAddress: {string: \"0000:3b:02.0\"}}"})
	p := start(t, goldenSources(t, n.flags(flags{
		"inventory.file":       n.inventory(gpus(4), nic),
		"source.scrape.config": n.scrapeConfig(endpoint("vendor", vendor(t, fixed(exposition.String())))),
	})))
	p.eventually("charged", func() bool { return p.scrape().positive("dra_pod_energy_joules_total", "pod", "sliced-b") })
	m := p.scrape()
	m.want(1, "dra_pod_claim_info", "pod", "plugin", "driver", gpuDriver, "device", "gpu-1")
	m.want(2, "dra_device_allocations", "device", "gpu-2")
	m.want(150, "dra_pod_power_watts", "pod", "sliced-a", "device", "gpu-2")
	m.want(500, "dra_pod_power_watts", "pod", "plugin", "driver", "nvidia.com/mig-1g.10gb", "pool", "", "device", mig)
	checkGolden(t, "plugins.prom", p.page("/metrics").Body)
	expect.That(t, conserved(t, p.report()) != 0, "nothing was compared")

	// Pods with devices of plugins end like others, and their counters stay.
	must.Do(t, n.kubelet.Set(&v1.ListPodResourcesResponse{PodResources: list.PodResources[:1]}))
	p.eventually("ended", func() bool {
		m := p.scrape()
		_, held := m.value("dra_pod_claim_info", "pod", "sliced-a")
		return !held && m.positive("dra_pod_energy_joules_total", "pod", "sliced-a") &&
			m.is(0, "dra_device_allocations", "device", "gpu-2")
	})
	expect.That(t, conserved(t, p.report()) != 0, "nothing was compared")
}

// When the inventory file becomes invalid or is deleted, the last inventory stays in use, and the
// error is reported.
func TestInventoryBreaks(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	file := n.inventory(gpus(2))
	p := start(t, n.flags(flags{"inventory.file": file}))
	p.eventually("aware of the holders", func() bool { return holders(p) == 1 })
	p.scrape().want(1, "dra_exporter_source_up", "source", "slices")
	n.inventory("a: [b")
	p.eventually("down", func() bool { return p.scrape().is(0, "dra_exporter_source_up", "source", "slices") })
	p.scrape().want(1, "dra_device_info", "device", "gpu-1", "uuid", uuid(1))
	must.Do(t, os.Remove(file))
	time.Sleep(1500 * time.Millisecond) // a tick
	p.scrape().want(1, "dra_device_info", "device", "gpu-1", "uuid", uuid(1))
	n.inventory(gpus(3))
	p.eventually("up again", func() bool { return p.scrape().is(1, "dra_exporter_source_up", "source", "slices") })
	p.scrape().want(1, "dra_device_info", "device", "gpu-2", "uuid", uuid(2))
}
