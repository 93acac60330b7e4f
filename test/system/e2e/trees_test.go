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

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard/drmcardtest"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
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
			holds = len(m.Rows(name, labels...)) == 0
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

// inPackage is the reason for a sensor that measures more than the GPU.
const inPackage = "its sensor measures the package, the processor included"

// The page of a device has each quantity of the catalogue: its value, or why it is absent. This is
// so for every recorded card of the folder that the environment variable RECORDED names. Of some
// cards all that is exported is compared. Counters of Intel's do not change: a power of 0 is none,
// and the utilization of the card that reports itself as idle is unknown.
func TestRecordedCards(t *testing.T) {
	t.Parallel()
	recorded := os.Getenv("RECORDED")
	if recorded == "" {
		t.Skip("NOT RUN: the environment variable RECORDED is empty")
	}
	folders, err := filepath.Glob(filepath.Join(recorded, "drm", "[ai]*", "*"))
	if err != nil || len(folders) < 14 {
		t.Fatalf("%d cards: %v", len(folders), err)
	}
	for _, folder := range folders {
		vendor, card := filepath.Base(filepath.Dir(folder)), filepath.Base(folder)
		t.Run(card, func(t *testing.T) {
			t.Parallel()
			p := startCard(t, drmcardtest.Recorded(t, vendor+"/"+card))
			if absent := p.absent(); absent["power"] == inPackage {
				t.Errorf("of the card, or of the GPU of the APU alone, the power is known: %v", absent)
			}
			golden := filepath.Join("recorded", vendor+"gpu-"+card+".prom")
			if _, err := os.Stat(filepath.Join("testdata", "golden", golden)); err != nil {
				return
			}
			p.eventually("complete", func() bool {
				m := p.scrape()
				_, peaks := m.value("dra_pod_power_peak_watts", "pod", "holder") // a tick after the gauge
				return peaks && m.positive("dra_pod_energy_joules_total", "pod", "holder") || vendor == "intel" &&
					m.positive("dra_exporter_input_rejected_total", "input", "intelgpu/power", "reason", "zero")
			})
			exposition := p.page("/metrics").Body
			lint(t, exposition)
			own := slices.DeleteFunc(bytes.SplitAfter(stable(exposition), []byte("\n")), func(line []byte) bool {
				return !bytes.Contains(line, []byte(`device="`))
			})
			compareGolden(t, golden, bytes.Join(own, nil))
		})
	}
}

// An APU whose files have the power of the package only has no power, and says why.
func TestPackagePower(t *testing.T) {
	t.Parallel()
	const folder = amdFolder
	for name, files := range map[string]string{
		"MI300A":           folder + "device: 0x74a0\n",
		"Renoir, Van Gogh": folder + "device: 0x163f\n" + folder + "hwmon/hwmon1/in1_label: vddnb\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startCard(t, amdCard(t, files))
			absent := p.absent()
			for _, quantity := range []string{"power", "energy"} {
				if absent[quantity] != inPackage {
					t.Errorf("%s: %q", quantity, absent[quantity])
				}
			}
			p.scrape().wantNone("dra_device_power_watts")
			p.scrape().wantNone("dra_claim_energy_joules_total")
		})
	}
}

// The fan of an RX 5700 XT stands still: its sensor shows a rest of 29 of 3400 rotations beside a
// setting of 65 of 255, which says what is wanted and not what is.
func TestFanOfRest(t *testing.T) {
	t.Parallel()
	const monitor = amdFolder + "hwmon/hwmon1/"
	p := startCard(t, amdCard(t, amdFolder+"device: 0x731f\n"+monitor+"fan1_input: 29\n"+monitor+"fan1_max: 3400\n"+
		monitor+"pwm1: 65\n"+monitor+"pwm1_max: 255\n"))
	p.eventually("the fan is read", func() bool {
		return p.scrape().is(29, "dra_device_fan_rpm", "device", "card")
	})
	p.scrape().want(0, "dra_device_fan_speed_ratio", "device", "card")
}

// Files that have text in place of numbers cost their own values, which are counted by quantity: a
// card of which no number can be read answers, and is not lost.
func TestGarbledFiles(t *testing.T) {
	t.Parallel()
	root := amdCard(t, "")
	p := startCard(t, root)
	garbled := func(quantity string) bool {
		return p.scrape().positive("dra_exporter_input_rejected_total", "input", "amdgpu/"+quantity, "reason", "malformed")
	}
	drivertest.WriteTree(t, root, amdFolder+"hwmon/hwmon1/power1_average: many\n")
	p.eventually("the power is no number", func() bool { return garbled("power") })
	m := p.scrape()
	m.want(0.5, "dra_device_utilization_ratio", "device", "card")
	m.wantNone("dra_device_power_watts", "device", "card")
	drivertest.WriteTree(t, root, amdFolder+"gpu_busy_percent: x\n"+amdFolder+"mem_info_vram_used: -\n"+
		amdFolder+"mem_info_vram_total: \x01\n")
	p.eventually("nothing is a number", func() bool {
		return garbled("utilization") && garbled("memory_used") && garbled("memory_capacity") &&
			p.scrape().is(1, "dra_exporter_unresolved_devices", "driver", "gpu.example.com", "reason", "rejected")
	})
	for _, i := range p.incidents() {
		if i.Kind == recorder.DeviceLost {
			t.Errorf("the device is lost: %s", i.Text)
		}
	}
}

// amdFolder is the folder of the card of amdCard.
const amdFolder = "devices/pci0000:00/0000:03:00.0/"

// amdCard writes a tree of a card of AMD, with some files of its own.
func amdCard(t *testing.T, files string) (root string) {
	root = t.TempDir()
	drivertest.WriteTree(t, root, files+amdFolder+`vendor: 0x1002
`+amdFolder+`class: 0x038000
`+amdFolder+`driver -> ../../../bus/pci/drivers/amdgpu
`+amdFolder+`gpu_busy_percent: 50
`+amdFolder+`mem_info_vram_total: 1000000000
`+amdFolder+`mem_info_vram_used: 1000
`+amdFolder+`hwmon/hwmon1/name: amdgpu
`+amdFolder+`hwmon/hwmon1/power1_average: 35000000
`+amdFolder+`drm/card0/dev: 226:0
`+amdFolder+`drm/renderD128/dev: 226:128
class/drm/card0 -> ../../`+amdFolder+`drm/card0
class/drm/card0/device -> ../../../0000:03:00.0
class/drm/renderD128 -> ../../`+amdFolder+`drm/renderD128
`)
	return root
}

// startCard starts the program on the tree of one graphics card, which a pod holds, and waits for
// its readings.
func startCard(t *testing.T, root string) *program {
	t.Helper()
	cards, _, err := drmcard.NewLister(root).Cards(time.Now())
	if err != nil || len(cards) != 1 {
		t.Fatal(len(cards), err)
	}
	n := newNode(t)
	n.setPods(pod("team", "holder", "gpu", podresourcestest.Device("gpu.example.com", nodeName, "card")))
	p := start(t, n.flags(flags{
		"path.sysfs": root,
		"inventory.file": n.inventory(slice("gpu.example.com", [2]string{
			"card", fmt.Sprintf("{resource.kubernetes.io/pciBusID: {string: %q}}", cards[0].PCI),
		})),
	}))
	p.eventually("readings", func() bool { return p.scrape().is(1, "dra_device_up", "device", "card") })
	return p
}

// absent returns why quantities are absent, from the page of the card, and checks that the page has
// all others.
func (p *program) absent() map[string]string {
	p.t.Helper()
	page := string(p.page("/page/detail?device=gpu.example.com/" + nodeName + "/card").Body)
	before, section, _ := strings.Cut(page, "<h3>Absent</h3>")
	reasons := map[string]string{}
	cell := regexp.MustCompile(`<td[^>]*>([^<]*)</td>`)
	for row := range strings.SplitSeq(section, "<tr>") {
		cells := cell.FindAllStringSubmatch(row, -1)
		if len(cells) < 2 {
			continue
		}
		for name := range strings.SplitSeq(cells[0][1], ", ") {
			reasons[name] = strings.ReplaceAll(cells[1][1], "&#39;", "'")
		}
	}
	for _, spec := range driver.Standard() {
		name := strings.ReplaceAll(spec.Name, "_", " ")
		shown := regexp.MustCompile(`<td[^>]*>` + name + `( \([^<]*\))?</td>`).MatchString(before)
		if !spec.Internal && shown == (reasons[name] != "") {
			p.t.Errorf("%s: shown %v, absent because %q", name, shown, reasons[name])
		}
	}
	return reasons
}
