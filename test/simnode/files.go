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

	"github.com/dra-exporter/dra-exporter/test/node"
)

// writeInventory writes the API objects in the format of kubectl get resourceslices,resourceclaims
// -A -o yaml.
func (n *Node) writeInventory() error {
	out := []byte("apiVersion: v1\nkind: List\nitems:\n")
	out = append(out, n.slices...)
	for _, c := range slices.SortedFunc(maps.Values(n.claims), func(a, b *claim) int { return a.Compare(b.Claim) }) {
		out = append(out, c.item...)
	}
	return n.Write(node.Inventory, out)
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

func (n *Node) makeLogs(p *pod) error {
	return n.MakeLogs(p.Namespace, p.Name, p.uid, p.spec.Containers...)
}

func (n *Node) removeLogs(p *pod) error {
	if err := os.RemoveAll(n.Path(node.LogsOf(p.Namespace, p.Name, p.uid))); err != nil {
		return fmt.Errorf("remove log folder: %w", err)
	}
	return nil
}

// specPath returns the path of the CDI spec that a driver writes for a claim.
func (c *claim) specPath(driverName string) string {
	return filepath.Join(node.CDI, driverName+"-"+c.uid+".json")
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
		if err := n.Write(c.specPath(driverName), data); err != nil {
			return err
		}
	}
	return nil
}

// unprepare removes the CDI specs of a claim.
func (n *Node) unprepare(c *claim) error {
	for _, a := range c.allocated {
		if err := os.Remove(n.Path(c.specPath(a.device.Driver))); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove CDI spec: %w", err)
		}
	}
	return nil
}
