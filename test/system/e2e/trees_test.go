package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard/drmcardtest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Each file of testdata/trees is a node with devices that one source reads: what the kernel's files
// say at first and later, who holds the devices, and what the program shows of that. Its README has
// the form of the files.
func TestTrees(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "trees", "*.txt"))
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			content := must.Get(os.ReadFile(file))(t)
			playTree(t, newNode(t), strings.Split(string(content), "\n-- ")[1:])
		})
	}
}

// playTree plays the parts of a file in their order. The program starts with the first
// expectations.
func playTree(t *testing.T, n *machine, parts []string) {
	t.Helper()
	var p *program
	driverName := ""
	for _, part := range parts {
		title, lines, _ := strings.Cut(part, " --\n")
		switch {
		case title == "node":
			n.writeTree(lines)
		case strings.HasPrefix(title, "slice of "):
			driverName = strings.TrimPrefix(title, "slice of ")
			var devices [][2]string
			for line := range strings.Lines(lines) {
				name, attributes, _ := strings.Cut(strings.TrimSpace(line), " ")
				devices = append(devices, [2]string{name, attributes})
			}
			n.inventory(slice(driverName, devices...))
		case title == "pods":
			n.holdTree(driverName, lines)
		case title == "shown":
			if p == nil {
				p = start(t, n.flags(flags{"sample.interval": "500ms", "inventory.file": n.path("inventory.yaml")}))
			}
			missing := []string{"everything"}
			t.Cleanup(func() {
				expect.That(t, !t.Failed(), "not shown: %q", missing)
			})
			p.eventually("shown", func() bool { missing = p.scrape().missing(lines); return len(missing) == 0 })
		default:
			t.Fatalf("a part %q", title)
		}
	}
	expect.That(t, conserved(t, p.report()) != 0, "nothing was compared")
}

// writeTree writes files. The content of one with a backslash is a Go string without quotes.
func (n *machine) writeTree(lines string) {
	for line := range strings.Lines(lines) {
		name, content, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if !strings.Contains(content, `\`) {
			drivertest.WriteTree(n.t, n.Dir, line)
			continue
		}
		content, err := strconv.Unquote(`"` + content + `"`)
		must.That(n.t, err == nil, "%s: %v", line, err)
		n.mkdir(filepath.Dir(name))
		n.write(name, content)
	}
}

// holdTree lets pods hold devices. A line has a pod, its claim, the device, and its process if it
// has one; those of a pod that holds nothing are -.
func (n *machine) holdTree(driverName, lines string) {
	var pods []*v1.PodResources
	for line := range strings.Lines(lines) {
		fields := append(strings.Fields(line), "")
		var devices []*v1.ClaimResource
		if fields[2] != "-" {
			devices = append(devices, podresourcestest.Device(driverName, nodeName, fields[2]))
		}
		pods = append(pods, pod("team", fields[0], strings.TrimPrefix(fields[1], "-"), devices...))
		if pid := fields[3]; pid != "" {
			uid := "00000000-0000-4000-8000-00000000" + pid
			n.addPod("team", fields[0], uid)
			n.mkdir("proc/" + pid)
			n.write("proc/"+pid+"/cgroup", "0::/kubepods/pod"+uid+"/x\n")
		}
	}
	n.setPods(pods...)
}

// missing returns the expectations that do not hold. Each is a series with its value, or "none" for
// one that must not be there, or "some" for any value above 0.
func (m metrics) missing(lines string) (out []string) {
	label := regexp.MustCompile(`(\w+)="([^"]*)"`)
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		name, rest, _ := strings.Cut(line, "{")
		inside, want, ok := strings.Cut(rest, "} ")
		must.That(m.t, ok, "%q is no series", line)
		var labels []string
		for _, pair := range label.FindAllStringSubmatch(inside, -1) {
			labels = append(labels, pair[1:]...)
		}
		var holds bool
		switch want {
		case "none":
			holds = len(m.rows(name, labels...)) == 0
		case "some":
			holds = m.positive(name, labels...)
		default:
			v, err := strconv.ParseFloat(want, 64)
			holds = err == nil && m.is(v, name, labels...)
		}
		if !holds {
			out = append(out, line)
		}
	}
	return out
}

// The program exports recorded cards of the folder that the environment variable RECORDED names.
// Counters of Intel's do not change: a power of 0 is none, and the utilization of the card that
// reports itself as idle is unknown.
func TestRecordedCards(t *testing.T) {
	t.Parallel()
	amd := func(m metrics) bool {
		_, peaks := m.value("dra_pod_power_peak_watts", "pod", "holder") // a tick after the gauge
		return peaks && m.positive("dra_pod_energy_joules_total", "pod", "holder")
	}
	intel := func(m metrics) bool {
		return m.positive("dra_exporter_input_rejected_total", "input", "intelgpu/power", "reason", "zero")
	}
	for _, card := range []struct {
		folder, source, driver string
		isComplete             func(metrics) bool
	}{
		{"amd/rx7800xt", "amdgpu", "gpu.amd.com", amd},
		{"amd/phoenix", "amdgpu", "gpu.amd.com", amd},
		{"amd/vega56", "amdgpu", "gpu.amd.com", amd},
		{"amd/rx580", "amdgpu", "gpu.amd.com", amd},
		{"intel/b580-6.16", "intelgpu", "gpu.intel.com", intel},
		{"intel/a380-i915", "intelgpu", "gpu.intel.com", intel},
	} {
		t.Run(filepath.Base(card.folder), func(t *testing.T) {
			t.Parallel()
			root := drmcardtest.Recorded(t, card.folder)
			cards, _, err := drmcard.NewLister(root).Cards(time.Now())
			if err != nil || len(cards) != 1 {
				t.Fatal(len(cards), err)
			}
			device := fmt.Sprintf("gpu-%d-%d", cards[0].Index, cards[0].Render)
			n := newNode(t)
			n.setPods(pod("team", "holder", "gpu", podresourcestest.Device(card.driver, nodeName, device)))
			f := goldenSources(t, n.flags(flags{
				"path.sysfs": root,
				"inventory.file": n.inventory(slice(card.driver, [2]string{
					device, fmt.Sprintf("{resource.kubernetes.io/pciBusID: {string: %q}}", cards[0].PCI),
				})),
			}))
			delete(f, "no-source."+card.source)
			p := start(t, f)
			p.eventually("complete", func() bool { return card.isComplete(p.scrape()) })
			exposition := p.page("/metrics").Body
			lint(t, exposition)
			own := slices.DeleteFunc(bytes.SplitAfter(stable(exposition), []byte("\n")), func(line []byte) bool {
				return !bytes.Contains(line, []byte(`device="`))
			})
			compareGolden(t, filepath.Join("recorded", card.source+"-"+filepath.Base(card.folder)+".prom"), bytes.Join(own, nil))
		})
	}
}
