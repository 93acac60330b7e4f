package inventory

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

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
