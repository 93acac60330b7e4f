package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
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
