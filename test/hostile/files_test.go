package hostile

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/amdgpu"
	"github.com/dra-exporter/dra-exporter/driver/cpu"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/drm"
	"github.com/dra-exporter/dra-exporter/driver/intelgpu"
	"github.com/dra-exporter/dra-exporter/driver/netdev"
	"github.com/dra-exporter/dra-exporter/driver/nvme"
	"github.com/dra-exporter/dra-exporter/driver/rdma"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// files is a tree of files, such as sysfs, of which a source reads one device.
type files struct {
	t    *testing.T
	root string
}

// newFiles writes the trees at the paths.
func newFiles(t *testing.T, paths ...string) files {
	f := files{t: t, root: t.TempDir()}
	for _, path := range paths {
		text := must.Get(os.ReadFile(path))(t)
		drivertest.WriteTree(t, f.root, string(text))
	}
	return f
}

func (f files) read(path string) string {
	content, err := os.ReadFile(path)
	expect.OK(f.t, err)
	return string(content)
}

func (f files) write(path, content string) {
	expect.OK(f.t, os.WriteFile(path, []byte(content), 0o600))
}

// numbers returns the places of the numbers in a text, which stand alone between spaces.
func numbers(text string) (out [][2]int) {
	for at := 0; at < len(text); {
		rest := text[at:]
		skip := len(rest) - len(strings.TrimLeft(rest, " \t\n"))
		at += skip
		word, _, _ := strings.Cut(strings.NewReplacer("\t", " ", "\n", " ").Replace(text[at:]), " ")
		if _, err := strconv.ParseInt(word, 10, 64); err == nil {
			out = append(out, [2]int{at, at + len(word)})
		}
		at += len(word)
	}
	return out
}

// places returns the places of the numbers in those files that are of the device.
func (f files) places(of func(path string) bool) (out []place) {
	err := filepath.WalkDir(f.root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || !of(path) {
			return err
		}
		for i, at := range numbers(f.read(path)) {
			now := func() (text string, from, to int) {
				text = f.read(path)
				at = numbers(text)[i]
				return text, at[0], at[1]
			}
			out = append(out, place{
				name: strings.TrimPrefix(path, f.root) + " " + strconv.Itoa(i),
				read: func() float64 {
					text, from, to := now()
					v, _ := strconv.ParseFloat(text[from:to], 64)
					return v
				},
				write: func(number string) func() {
					text, from, to := now()
					f.write(path, text[:from]+number+text[to:])
					return func() { f.write(path, text) }
				},
			})
		}
		return nil
	})
	must.Do(f.t, err)
	return out
}

// count adds to the number in a file.
func (f files) count(path string, amount int64) {
	path = filepath.Join(f.root, path)
	v, err := strconv.ParseInt(strings.TrimSpace(f.read(path)), 10, 64)
	expect.OK(f.t, err)
	f.write(path, strconv.FormatInt(v+amount, 10)+"\n")
}

// playFiles plays a source that reads files, with the numbers of files whose paths contain a text,
// except those with some names. pass may change the files.
func playFiles(
	t *testing.T, f files, h driver.Hardware, source func() driver.Source, in input, within string, except ...string,
) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, h)
		n.source, n.now, in.text = source(), time.Now(), true
		pass := in.pass
		in.pass = func() {
			time.Sleep(time.Second)
			n.now = time.Now()
			if pass != nil {
				pass()
			}
		}
		in.places = f.places(func(path string) bool {
			return strings.Contains(path, within) && !slices.Contains(except, filepath.Base(path))
		})
		play(t, n, in)
	})
}

// A GPU of AMD, by its files.
func TestAMDGPU(t *testing.T) {
	const pci = "0000:0c:00.0"
	f := newFiles(t, "../../driver/amdgpu/testdata/server.tree")
	playFiles(t, f, driver.Hardware{PCI: pci}, func() driver.Source { return amdgpu.New(f.root) }, input{
		refresh: 11, silent: []driver.Quantity{driver.LinkGeneration, driver.LinkGenerationMax}, // by texts
	}, pci, "class", "device", "vendor", "unique_id")
}

// GPUs of Intel, by their files: one of xe and one of i915.
func TestIntelGPU(t *testing.T) {
	const pci, watts = "0000:4d:00.0", 300
	f := newFiles(t, "../../driver/intelgpu/testdata/server.tree")
	folder := "devices/pci0000:4c/" + pci
	source := func() driver.Source { return intelgpu.New(f.root) }
	playFiles(t, f, driver.Hardware{PCI: pci}, source,
		input{
			rates: map[driver.Quantity]float64{driver.Energy: watts}, refresh: 11,
			pass: func() {
				f.count(folder+"/hwmon/hwmon4/energy1_input", watts*1e6)
				f.count(folder+"/hwmon/hwmon4/energy2_input", watts*1e6)
				f.count(folder+"/tile0/gt0/gtidle/idle_residency_ms", 400)
				f.count(folder+"/tile1/gt1/gtidle/idle_residency_ms", 500)
			},
			varies: true,                            // rates of what is idle
			silent: []driver.Quantity{driver.Power}, // that of the energy
		}, pci, "vendor")
}

// A network interface, by its files.
func TestNetDev(t *testing.T) {
	f := newFiles(t, "../../driver/netdev/testdata/server.tree")
	interfaces, err := filepath.Glob(filepath.Join(f.root, "class", "net", "*", "statistics"))
	must.That(t, err == nil && len(interfaces) != 0, "no interface: %v", err)
	name := filepath.Base(filepath.Dir(interfaces[0]))
	playFiles(t, f, driver.Hardware{NetDev: name}, func() driver.Source {
		return netdev.New(driver.Host{Sysfs: f.root, Procfs: f.root + "/proc"})
	}, input{}, "/net/"+name+"/", "ifindex", "flags", "type")
}

// An RDMA device, by its files.
func TestRDMA(t *testing.T) {
	f := newFiles(t, "../../driver/rdma/testdata/server.tree")
	playFiles(t, f, driver.Hardware{RDMADev: "mlx5_0"}, func() driver.Source {
		return rdma.New(driver.Host{Sysfs: f.root, Procfs: f.root + "/proc"})
	}, input{refresh: 11, silent: []driver.Quantity{driver.LinkUp}}, "/infiniband/mlx5_0/") // a text
}

// An NVMe drive, by its files.
func TestNVMe(t *testing.T) {
	f := newFiles(t, "../../driver/nvme/testdata/server.tree")
	playFiles(t, f, driver.Hardware{PCI: "0000:3b:00.0"}, func() driver.Source { return nvme.New(f.root) },
		input{refresh: 11, silent: []driver.Quantity{driver.Health}}, "/nvme/nvme0/") // a text
}

// CPUs, by the kernel's table of their times.
func TestCPU(t *testing.T) {
	f := newFiles(t)
	user, idle := 34828, 351554 // in hundredths of a second
	stat := filepath.Join(f.root, "stat")
	write := func() {
		cpu := strconv.Itoa(user) + " 21436 10623 " + strconv.Itoa(idle) + " 286 0 263 70 0 0\n"
		f.write(stat, "cpu0 "+cpu+"cpu1 "+cpu)
	}
	write()
	playFiles(t, f, driver.Hardware{CPUs: []int{0}}, func() driver.Source { return cpu.New(f.root) }, input{
		varies: true,
		pass: func() {
			user, idle = user+60, idle+40
			write()
		},
	}, "/stat")
}

// The clients of a GPU, by what the kernel says about their open files.
func TestDRM(t *testing.T) {
	const pci = "0000:c1:00.0"
	f := newFiles(t)
	drivertest.WriteTree(t, f.root, `
class/drm/card1 -> ../../devices/pci0000:c0/`+pci+`/drm/card1
devices/pci0000:c0/`+pci+`/drm/card1/device -> ../../../`+pci+`
devices/pci0000:c0/`+pci+`/drm/renderD128/device -> ../../../`+pci+`
devices/pci0000:c0/`+pci+`/driver -> ../../../bus/pci/drivers/amdgpu
proc/10/fd/5 -> /dev/dri/renderD128
proc/10/fdinfo/none: x
`)
	client := must.Get(os.ReadFile("../../driver/drm/testdata/amdgpu.fdinfo"))(t)
	busy, path := 5_000_000_000, filepath.Join(f.root, "proc", "10", "fdinfo", "5")
	write := func() {
		f.write(path, strings.Replace(string(client), "5000000000", strconv.Itoa(busy), 1))
	}
	write()
	playFiles(t, f, driver.Hardware{PCI: pci}, func() driver.Source {
		return drm.New(driver.Host{
			Procfs: filepath.Join(f.root, "proc"), Sysfs: f.root,
			Holders: func(func(*driver.Hardware) bool) []driver.PodProcesses {
				return []driver.PodProcesses{{Devices: []driver.Hardware{{PCI: pci}}, PIDs: []int{10}}}
			},
		})
	}, input{
		varies: true,
		silent: []driver.Quantity{driver.EngineUtilization}, // a part of the utilization
		pass: func() {
			busy += 600_000_000
			write()
		},
	}, "/fdinfo/5")
}
