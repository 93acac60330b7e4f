package inventory

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
)

const classicSlices = `{"apiVersion":"v1","kind":"List","items":[
	{"apiVersion":"resource.k8s.io/v1alpha2","kind":"ResourceSlice","metadata":{"name":"a"},
		"nodeName":"n1","driverName":"d.test","namedResources":{"instances":[
		{"name":"gpu-0","attributes":[{"name":"uuid","string":"U"},{"name":"memory","quantity":"1Gi"},
			{"name":"numaNode","int":1},
			{"name":"driverVersion","version":"1.2.3"},{"name":"fast","bool":true},
			{"name":"cpus","intSlice":{"ints":[1,2]}},{"name":"model","stringSlice":{"strings":["M"]}}]},
		{"name":"gpu-1"}, {"attributes":[]}, 7]}},
	{"apiVersion":"resource.k8s.io/v1alpha2","kind":"ResourceSlice","metadata":{"name":"b"},
		"nodeName":"n2","driverName":"d.test","namedResources":{"instances":[{"name":"gpu-2"}]}},
	{"apiVersion":"resource.k8s.io/v1alpha2","kind":"ResourceSlice","metadata":{"name":"c"},
		"nodeName":"n1","driverName":"e.test"},
	{"apiVersion":"resource.k8s.io/v1alpha2","kind":"ResourceSlice","metadata":{"name":"d"},"driverName":"e.test"}]}`

// Slices of v1alpha2 have the same meaning as those of later versions.
func TestClassicSlices(t *testing.T) {
	got, rejected, err := ParseSlices([]byte(classicSlices), "n1")
	if err != nil {
		t.Fatal(err)
	}
	want := driver.Inventory{
		{Driver: "d.test", Pool: "n1", Device: "gpu-0"}: {
			Hardware: driver.Hardware{UUID: "U", NUMANode: "1", DriverVersion: "1.2.3", Model: "M"},
			Capacity: []driver.Amount{{Resource: "memory", Value: 1 << 30}}, Local: true,
		},
		{Driver: "d.test", Pool: "n1", Device: "gpu-1"}: {Local: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff(driver.Rejections{driver.ReasonMalformedDevice: 2, driver.ReasonMalformedSlice: 1},
		rejected); diff != "" {
		t.Errorf("rejections: -want +got:\n%s", diff)
	}
}

// The CDI spec of a claim has the claim's UID in the container's environment.
func TestClaimUID(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "nic.yaml"), `cdiVersion: 0.6.0
kind: k8s.netresources.spidernet.io/claim
devices:
- name: one
  containerEdits:
    env: [A=b, DRA_CLAIM_UID=1e15705a-62fe-4694-8535-93a5f0ccf996]
- name: odd
  containerEdits: {env: ["DRA_CLAIM_UID=a b"]}
- name: none
  containerEdits: {env: ["A=b"]}
`)
	c := NewCDI([]string{dir}, "")
	c.Load()
	const kind = "k8s.netresources.spidernet.io/claim="
	for name, want := range map[string]string{
		"one": "1e15705a-62fe-4694-8535-93a5f0ccf996", "odd": "", "none": "",
		"absent": "",
	} {
		if got := c.ClaimUID([]string{kind + name}); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
