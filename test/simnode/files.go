package simnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
	cdi "tags.cncf.io/container-device-interface/specs-go"
)

// write replaces a file atomically.
func (n *Node) write(path string, data []byte) error {
	draft := n.path(draftsPath, filepath.Base(path))
	if err := os.WriteFile(draft, data, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(draft, n.path(path)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// writeInventory writes the API objects in the format of kubectl get resourceslices,resourceclaims
// -A -o yaml.
func (n *Node) writeInventory() error {
	out := []byte("apiVersion: v1\nkind: List\nitems:\n")
	out = append(out, n.slices...)
	for _, c := range slices.SortedFunc(maps.Values(n.claims), func(a, b *claim) int { return a.Compare(b.Claim) }) {
		out = append(out, c.item...)
	}
	return n.write(inventoryPath, out)
}

// item returns an object as an item of a list, in YAML.
func item(object any) ([]byte, error) {
	data, err := yaml.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode object: %w", err)
	}
	lines := strings.TrimSuffix(string(data), "\n")
	return []byte("- " + strings.ReplaceAll(lines, "\n", "\n  ") + "\n"), nil
}

// writeCgroup writes the files of a cgroup of version 2 that identify it and say that it has
// processes.
func writeCgroup(dir string) error {
	for name, content := range map[string]string{
		"cgroup.controllers": "cpuset cpu io memory pids\n",
		"cgroup.events":      "populated 1\nfrozen 0\n",
		// Its processes sleep: the simulated work is on devices alone.
		"cpu.stat":    "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n",
		"memory.stat": "anon 1073741824\nfile 268435456\npgfault 250000\npgmajfault 120\n",
		"io.stat":     "259:0 rbytes=1048576 wbytes=65536 rios=20 wios=4 dbytes=0 dios=0\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return fmt.Errorf("write cgroup: %w", err)
		}
	}
	return nil
}

// cgroupOf returns the folder of a pod's cgroup, named as by the kubelet's systemd driver.
func cgroupOf(uid string) string {
	return filepath.Join(burstablePath, "kubepods-burstable-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
}

// makeCgroup creates a pod's cgroup. Like the kernel's, it appears with all its files at once.
func (n *Node) makeCgroup(uid string) error {
	draft := n.path(draftsPath, uid)
	if err := os.Mkdir(draft, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	if err := writeCgroup(draft); err != nil {
		return err
	}
	if err := os.Rename(draft, n.path(cgroupOf(uid))); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	return nil
}

func (n *Node) removeCgroup(uid string) error {
	if err := os.RemoveAll(n.path(cgroupOf(uid))); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	return nil
}

// logs returns the log folder of a pod.
func (p *pod) logs() string {
	return filepath.Join(logsPath, p.Namespace+"_"+p.Name+"_"+p.uid)
}

func (n *Node) makeLogs(p *pod) error {
	for _, container := range p.spec.Containers {
		if err := os.MkdirAll(n.path(p.logs(), container), 0o755); err != nil {
			return fmt.Errorf("make log folder: %w", err)
		}
	}
	return nil
}

func (n *Node) removeLogs(p *pod) error {
	if err := os.RemoveAll(n.path(p.logs())); err != nil {
		return fmt.Errorf("remove log folder: %w", err)
	}
	return nil
}

// specPath returns the path of the CDI spec that a driver writes for a claim.
func (c *claim) specPath(driverName string) string {
	return filepath.Join(cdiPath, driverName+"-"+c.uid+".json")
}

// prepare writes the CDI specs of a claim: one for each driver that uses CDI.
func (n *Node) prepare(c *claim) error {
	specs := map[string]*cdi.Spec{}
	for _, a := range c.allocated {
		if a.device.CDIClass == "" {
			continue
		}
		spec, ok := specs[a.device.Driver]
		if !ok {
			spec = &cdi.Spec{Version: "0.6.0", Kind: a.device.Driver + "/" + a.device.CDIClass}
			specs[a.device.Driver] = spec
		}
		spec.Devices = append(spec.Devices, cdi.Device{
			Name:           c.cdiDevice(a),
			ContainerEdits: cdi.ContainerEdits{Env: []string{fmt.Sprintf("GPU_DEVICE_%d=%s", len(spec.Devices), a.device.Name)}},
		})
	}
	for driverName, spec := range specs {
		data, err := json.Marshal(spec)
		if err != nil {
			return fmt.Errorf("encode CDI spec: %w", err)
		}
		if err := n.write(c.specPath(driverName), data); err != nil {
			return err
		}
	}
	return nil
}

// unprepare removes the CDI specs of a claim.
func (n *Node) unprepare(c *claim) error {
	for _, a := range c.allocated {
		if err := os.Remove(n.path(c.specPath(a.device.Driver))); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove CDI spec: %w", err)
		}
	}
	return nil
}
