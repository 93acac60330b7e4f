package inventory

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestRecorded(t *testing.T) {
	got := parse(t, readTestdata(t, "resourceslices.yaml"), "node1")
	expect.That(t, len(got) == 10, "%d devices, want 10", len(got))
	memory := []driver.Amount{{Resource: "memory", Value: 80 << 30}}
	for id, want := range map[driver.ID]driver.Entry{
		{Driver: "gpu.example.com", Pool: "node1", Device: "gpu-3"}: {
			Hardware: driver.Hardware{
				UUID: "GPU-aaaaaaaa-0000-0000-0000-000000000003", Model: "LATEST-GPU-MODEL", DriverVersion: "1.0.0",
				Index: "3",
			},
			Capacity: memory, Local: true,
		},
		{Driver: "gpu.example.com", Pool: "node1", Device: "shared-1"}: {
			Hardware: driver.Hardware{
				UUID: "GPU-bbbbbbbb-0000-0000-0000-000000000001", Model: "LATEST-GPU-MODEL", DriverVersion: "1.0.0",
				Index: "1",
			},
			Capacity: memory, Local: true, Shareable: true,
			Policies: []driver.RequestPolicy{{Resource: "memory", Min: 10 << 30, Step: 10 << 30}},
		},
	} {
		expect.Equal(t, id.String(), want, got[id])
	}
	if other := parse(t, readTestdata(t, "resourceslices.yaml"), "node2"); len(other) != 0 {
		t.Errorf("node2 has %d devices of node1", len(other))
	}
}

// sliceOf returns a v1 slice in JSON with that node selection (JSON members) and those devices.
func sliceOf(generation int, nodeSelection string, devices ...string) string {
	return fmt.Sprintf(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice","metadata":{"name":"s"},"spec":{
		"driver":"d.test","pool":{"name":"p","generation":%d,"resourceSliceCount":1},%s,"devices":[%s]}}`,
		generation, nodeSelection, strings.Join(devices, ","))
}

// A device with binding conditions (KEP-5007) is known as one.
func TestBindingConditions(t *testing.T) {
	for device, want := range map[string]bool{
		`{"name":"x"}`:                        false,
		`{"name":"x","bindingConditions":[]}`: false,
		`{"name":"x","bindingConditions":["d.test/attached"],"bindingFailureConditions":["d.test/failed"]}`: true,
	} {
		for id, entry := range parse(t, []byte(sliceOf(1, `"nodeName":"node1"`, device)), "node1") {
			expect.That(t, entry.Conditional == want, "%s: %v has binding conditions: %v", device, id, entry.Conditional)
		}
	}
}

func decoded(t *testing.T, data []byte) (Slice, bool) {
	objects, _, err := manifest.Objects(data, "ResourceSlice")
	must.That(t, err == nil && len(objects) == 1, "%d objects, error %v", len(objects), err)
	return DecodeSlice(objects[0].Raw)
}

const here = `"nodeName":"n1"`

func TestPlacement(t *testing.T) {
	selector := func(terms ...string) string {
		return fmt.Sprintf(`"nodeSelector":{"nodeSelectorTerms":[%s]}`, strings.Join(terms, ","))
	}
	fields := func(operator string, nodes ...string) string {
		return `{"matchFields":[{"key":"metadata.name","operator":"` + operator + `","values":["` +
			strings.Join(nodes, `","`) + `"]}]}`
	}
	const labels = `{"matchExpressions":[{"key":"zone","operator":"In","values":["a"]}]}`
	for name, tc := range map[string]struct {
		nodeSelection string
		want          bool
		unknown       bool
	}{
		"node":                {here, true, false},
		"other node":          {`"nodeName":"n2"`, false, false},
		"all nodes":           {`"allNodes":true`, true, false},
		"nothing":             {`"x":0`, false, false},
		"selected":            {selector(fields("In", "n2", "n1")), true, false},
		"selected alone":      {selector(fields("In", "n1")), true, false},
		"second term":         {selector(fields("In", "n2"), fields("In", "n1")), true, false},
		"not selected":        {selector(fields("In", "n2")), false, false},
		"excluded":            {selector(fields("NotIn", "n1")), false, false},
		"not excluded":        {selector(fields("NotIn", "n2")), true, false},
		"empty term":          {selector(`{}`), false, false},
		"unknown field":       {selector(`{"matchFields":[{"key":"spec.x","operator":"In","values":["n1"]}]}`), false, false},
		"labels":              {selector(labels), false, true},
		"labels or this node": {selector(labels, fields("In", "n1")), true, false},
		"other node's labels": {selector(fields("In", "n2")[:len(fields("In", "n2"))-1] + "," + labels[1:]), false, false},
	} {
		device := `{"name":"x"}`
		perDevice := fmt.Sprintf(`{"name":"x",%s}`, tc.nodeSelection)
		for form, data := range map[string]string{
			"slice": sliceOf(1, tc.nodeSelection, device), "device": sliceOf(1, `"perDeviceNodeSelection":true`, perDevice),
		} {
			t.Run(name+"/"+form, func(t *testing.T) {
				wantRejected := driver.Rejections{}
				if tc.unknown {
					wantRejected = driver.Rejections{driver.ReasonNodeSelector: 1}
				}
				got, rejected, err := ParseSlices([]byte(data), "n1")
				one := slices.Contains([]string{"node", "selected alone"}, name)
				for id, entry := range got {
					expect.That(t, entry.ManyNodes != one, "%v may be used from many nodes: %v", id, entry.ManyNodes)
					expect.That(t, entry.Local == (form == "slice" && tc.nodeSelection == here), "%v is local: %v", id, entry.Local)
				}
				expect.That(t, err == nil && len(got) == 1 == tc.want && cmp.Equal(wantRejected, rejected),
					"%d devices, want %v; rejected %v, want %v; error %v", len(got), tc.want, rejected, wantRejected, err)
				all := parse(t, []byte(data), "")
				expect.That(t, len(all) == 1, "%d devices of any node, want 1", len(all))
			})
		}
	}
}

func TestNewestGeneration(t *testing.T) {
	data := strings.Join([]string{
		sliceOf(1, here, `{"name":"old"}`), sliceOf(3, here, `{"name":"a"}`), sliceOf(2, here, `{"name":"older"}`),
		sliceOf(3, here, `{"name":"b"}`),
		strings.ReplaceAll(sliceOf(1, here, `{"name":"c"}`), `"name":"p"`, `"name":"other-pool"`),
	}, "\n---\n")
	var names []string
	for id := range parse(t, []byte(data), "n1") {
		names = append(names, id.Pool+"/"+id.Device)
	}
	slices.Sort(names)
	expect.Equal(t, "", []string{"other-pool/c", "p/a", "p/b"}, names)
}

// TestMalformed checks that a fault affects nothing else: the device "ok" is always there, and so
// is "x" without an amount that is none.
func TestMalformed(t *testing.T) {
	x := driver.Entry{Hardware: driver.Hardware{UUID: "U"}, Local: true}
	attributes := func(more string) string { return `{"name":"x","attributes":{"uuid":{"string":"U"},` + more + `}}` }
	capacity := func(more string) string {
		return `{"name":"x","attributes":{"uuid":{"string":"U"}},"capacity":{` + more + `}}`
	}
	for name, tc := range map[string]struct {
		device string
		want   *driver.Entry
		reason driver.Reason
	}{
		"no object":           {`7`, nil, driver.ReasonMalformedDevice},
		"no name":             {`{}`, nil, driver.ReasonMalformedDevice},
		"bad name":            {`{"name":"a\nb"}`, nil, driver.ReasonMalformedDevice},
		"long name":           {`{"name":"` + strings.Repeat("x", 254) + `"}`, nil, driver.ReasonMalformedDevice},
		"not UTF-8":           {"{\"name\":\"\xff\"}", nil, driver.ReasonMalformedDevice},
		"duplicate":           {`{"name":"ok"}`, nil, driver.ReasonDuplicateDevice},
		"attribute's type":    {attributes(`"model":{"string":7}`), nil, driver.ReasonMalformedDevice},
		"NaN quantity":        {capacity(`"memory":{"value":"NaN"}`), nil, driver.ReasonMalformedDevice},
		"no object, capacity": {capacity(`"memory":["80Gi"]`), nil, driver.ReasonMalformedDevice},
		"negative quantity":   {capacity(`"memory":{"value":"-1"}`), &x, driver.ReasonMalformedCapacity},
		"infinite quantity":   {capacity(`"memory":{"value":"1e999"}`), &x, driver.ReasonMalformedCapacity},
		"resource name":       {capacity(`"a\"b":{"value":"1"}`), &x, driver.ReasonMalformedCapacity},
	} {
		t.Run(name, func(t *testing.T) {
			want := driver.Inventory{{Driver: "d.test", Pool: "p", Device: "ok"}: {Local: true}}
			if tc.want != nil {
				want[driver.ID{Driver: "d.test", Pool: "p", Device: "x"}] = *tc.want
			}
			got, rejected, err := ParseSlices([]byte(sliceOf(1, here, `{"name":"ok"}`, tc.device)), "n1")
			must.Do(t, err)
			expect.Equal(t, "", want, got)
			expect.Equal(t, "rejections", driver.Rejections{tc.reason: 1}, rejected)
		})
	}
}

func TestMalformedSlices(t *testing.T) {
	good := sliceOf(1, here, `{"name":"ok"}`)
	for name, tc := range map[string]struct {
		item   string
		reason driver.Reason
	}{
		"no object":   {`7`, driver.ReasonMalformedObject},
		"no kind":     {`{}`, driver.ReasonMalformedObject},
		"no spec":     {`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice"}`, driver.ReasonMalformedSlice},
		"spec's type": {`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice","spec":[]}`, driver.ReasonMalformedSlice},
		"driver":      {strings.Replace(good, "d.test", `d\"`, 1), driver.ReasonMalformedSlice},
		"no pool":     {strings.Replace(good, `"name":"p"`, `"name":""`, 1), driver.ReasonMalformedSlice},
	} {
		t.Run(name, func(t *testing.T) {
			got, rejected, err := ParseSlices(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"List","items":[%s,%s]}`, tc.item,
				good),
				"n1")
			expect.That(t, err == nil && len(got) == 1 && cmp.Equal(driver.Rejections{tc.reason: 1}, rejected),
				"%d devices, rejected %v, error %v", len(got), rejected, err)
		})
	}
}

// TestQualifiedNames holds that a bare attribute is one of the driver's domain, and that another
// domain's is not.
func TestQualifiedNames(t *testing.T) {
	for name, tc := range map[string]struct{ attributes, want string }{
		"bare":      {`"uuid":{"string":"A"}`, "A"},
		"qualified": {`"d.test/uuid":{"string":"B"}`, "B"},
		"both":      {`"uuid":{"string":"A"},"d.test/uuid":{"string":"B"}`, "B"},
		"foreign":   {`"e.test/uuid":{"string":"C"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 { // the order of a map changes nothing
				got := parse(t, []byte(sliceOf(1, here, `{"name":"x","attributes":{`+tc.attributes+`}}`)), "n1")
				uuid := got[driver.ID{Driver: "d.test", Pool: "p", Device: "x"}].UUID
				must.That(t, uuid == tc.want, "UUID %q, want %q", uuid, tc.want)
			}
		})
	}
}

func FuzzParseSlices(f *testing.F) {
	f.Add(readTestdata(f, "resourceslices.yaml"))
	f.Add(readTestdata(f, "drivers.yaml"))
	f.Add([]byte(sliceOf(1, `"allNodes":true`, `{"name":"x","basic":{"capacity":{"m":{"value":"1e-9"}}}}`)))
	// The API server's quantities are canonical: no power of ten that takes hours to read.
	slow := regexp.MustCompile(`[eE][+-]?\d{4}`)
	f.Fuzz(func(t *testing.T, data []byte) {
		if slow.Match(data) {
			return
		}
		got, rejected, err := ParseSlices(data, "node1")
		must.That(t, err == nil || got == nil && rejected == nil, "an error and a result")
		for id, entry := range got {
			checkEntry(t, id, entry)
		}
		for reason, n := range rejected {
			must.That(t, reason != "" && n > 0, "%d times %q", n, reason)
		}
	})
}

// checkEntry holds what every entry must satisfy.
func checkEntry(t *testing.T, id driver.ID, e driver.Entry) {
	t.Helper()
	must.That(t, id.Driver != "" && id.Pool != "" && id.Device != "", "incomplete %+v", id)
	must.That(t, e.PCI == "" || driver.NormalizePCI(e.PCI) == e.PCI, "PCI address %q is not normal", e.PCI)
	must.That(t, e.Parent == "" || e.Parent != e.UUID && e.Parent != e.PCI, "%v is its own parent", id)
	must.That(t, slices.IsSorted(e.CPUs), "CPUs %v", e.CPUs)
	for i, a := range e.Capacity {
		if a.Resource == "" || a.Value < 0 || math.IsNaN(a.Value) || math.IsInf(a.Value, 0) ||
			i > 0 && e.Capacity[i-1].Resource >= a.Resource {
			t.Fatalf("capacity %+v", e.Capacity)
		}
	}
}

func BenchmarkParseSlices(b *testing.B) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	raw := must.Get(yaml.YAMLToJSON(readTestdata(b, "resourceslices.yaml")))(b)
	var object map[string]any
	if json.Unmarshal(raw, &list) != nil || json.Unmarshal(list.Items[0], &object) != nil {
		b.Fatal("testdata")
	}
	spec := object["spec"].(map[string]any)
	template := spec["devices"].([]any)[0].(map[string]any)
	var devices []any
	for i := range 512 {
		d := maps.Clone(template)
		d["name"] = fmt.Sprintf("gpu-%d", i)
		devices = append(devices, d)
	}
	spec["devices"] = devices
	asJSON, _ := json.Marshal(object)
	asYAML, _ := yaml.JSONToYAML(asJSON)
	for _, form := range []struct {
		name string
		data []byte
	}{{"json", asJSON}, {"yaml", asYAML}} {
		b.Run(form.name+"/devices=512", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(form.data)))
			for b.Loop() {
				if got, _, err := ParseSlices(form.data, "node1"); err != nil || len(got) != 512 {
					b.Fatal(len(got), err)
				}
			}
		})
	}
}

// TestVersions writes the same slices in the three versions, in YAML and JSON, as documents and as
// lists, and wants the same inventory from all.
func TestVersions(t *testing.T) {
	source := readTestdata(t, "drivers.yaml")
	want := parse(t, source, "")
	for _, version := range []string{"v1", "v1beta2", "v1beta1", "v1alpha3"} {
		var objects []json.RawMessage
		for doc := range strings.SplitSeq(string(source), "\n---\n") {
			objects = append(objects, inVersion(t, doc, version))
		}
		list, typed := asList(t, "v1", "List", objects), asList(t, "resource.k8s.io/"+version, "ResourceSliceList", objects)
		for form, data := range map[string][]byte{
			"list": list, "typed list": typed, "YAML list": asYAML(t, list),
			"documents":           bytes.Join(rawBytes(objects), []byte("\n---\n")),
			"concatenated":        bytes.Join(rawBytes(objects), nil),
			"JSON, YAML and list": slices.Concat(objects[0], []byte("\n---\n"), asYAML(t, asList(t, "v1", "List", objects[1:]))),
		} {
			t.Run(version+"/"+form, func(t *testing.T) {
				expect.Equal(t, "", want, parse(t, data, ""))
			})
		}
	}
}

// inVersion returns a v1 slice as another version writes it.
func inVersion(t *testing.T, doc, version string) json.RawMessage {
	var object map[string]any
	must.Do(t, yaml.Unmarshal([]byte(doc), &object))
	object["apiVersion"] = "resource.k8s.io/" + version
	if version == "v1beta1" || version == "v1alpha3" {
		spec := object["spec"].(map[string]any)
		for i, d := range spec["devices"].([]any) {
			basic := d.(map[string]any)
			name := basic["name"]
			delete(basic, "name")
			flattenCapacity(basic, version)
			spec["devices"].([]any)[i] = map[string]any{"name": name, "basic": basic}
		}
	}
	raw := must.Get(json.Marshal(object))(t)
	return raw
}

// flattenCapacity writes the capacities as v1alpha3 does: without an object about each.
func flattenCapacity(basic map[string]any, version string) {
	capacity, _ := basic["capacity"].(map[string]any)
	for name, c := range capacity {
		if version == "v1alpha3" {
			capacity[name] = c.(map[string]any)["value"]
		}
	}
}

func asList(t *testing.T, apiVersion, kind string, items []json.RawMessage) []byte {
	raw := must.Get(json.Marshal(map[string]any{"apiVersion": apiVersion, "kind": kind, "items": items}))(t)
	return raw
}

func asYAML(t *testing.T, raw []byte) []byte {
	out := must.Get(yaml.JSONToYAML(raw))(t)
	return out
}

func rawBytes(raw []json.RawMessage) [][]byte {
	var out [][]byte
	for _, r := range raw {
		out = append(out, r)
	}
	return out
}

// A driver with too many devices loses those beyond its bound, and takes none from others. All
// drivers together have a bound too.
func TestTooManyDevices(t *testing.T) {
	offer := func(driverName string, n int) string {
		var devices []string
		for i := range n {
			devices = append(devices, fmt.Sprintf(`{"name":"x%d"}`, i))
		}
		return strings.ReplaceAll(sliceOf(1, here, devices...), "d.test", driverName)
	}
	for name, tc := range map[string]struct {
		slices        []string
		want, surplus int
	}{
		"one driver": {[]string{offer("a.test", maxDriverDevices+3), offer("b.test", 1)}, maxDriverDevices + 1, 3},
		"all drivers": {
			[]string{
				offer("a.test", maxDriverDevices), offer("b.test", maxDriverDevices), offer("c.test", maxDriverDevices),
				offer("d.test", maxDriverDevices), offer("e.test", 7),
			}, maxDevices, 7,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, rejected, err := ParseSlices([]byte(strings.Join(tc.slices, "\n---\n")), "n1")
			if err != nil || len(got) != tc.want ||
				!cmp.Equal(driver.Rejections{driver.ReasonTooManyDevices: tc.surplus}, rejected) {
				t.Errorf("%d devices, want %d; rejected %v; error %v", len(got), tc.want, rejected, err)
			}
		})
	}
}

// An offer is not larger than it may be. Devices without room are counted.
func TestOfferHasBounds(t *testing.T) {
	var devices []string
	for i := range 10 {
		uuid := strings.Repeat("u", 64)
		devices = append(devices, fmt.Sprintf(`{"name":"x%d","attributes":{"uuid":{"string":%q}}}`, i, uuid))
	}
	slice, ok := decoded(t, []byte(sliceOf(1, here, devices...)))
	must.That(t, ok, "malformed")
	rejected := driver.Rejections{}
	whole := slice.OfferTo("n1", math.MaxInt, rejected)
	expect.That(t, len(rejected) == 0, "rejected %v of what has room", rejected)
	half := slice.OfferTo("n1", whole.Size()/2, rejected)
	found, _ := Build([]Offer{half})
	expect.That(t, half.Size() <= whole.Size()/2 && len(found) == 4 && rejected[driver.ReasonTooManyDevices] == 6,
		"%d of %d bytes, %d devices, rejected %v", half.Size(), whole.Size(), len(found), rejected)
	elsewhere := slice.OfferTo("n2", 0, rejected)
	expect.That(t, len(elsewhere.devices) == 0 && elsewhere.Size() <= 1024,
		"another node's slice takes %d bytes, %d devices", elsewhere.Size(), len(elsewhere.devices))
}
