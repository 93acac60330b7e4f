package manifest

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestObjects(t *testing.T) {
	const one = "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nid: 1\n"
	two := `{"apiVersion":"resource.k8s.io/v1beta1","kind":"ResourceSlice","id":2}`
	for name, tc := range map[string]struct {
		data      string
		want      []Object
		malformed int
	}{
		"nothing":  {"", nil, 0},
		"comments": {"# nothing\n---\n\n---\n# here\n", nil, 0},
		"one": {
			one,
			[]Object{{1, 0, raw(`{"apiVersion":"resource.k8s.io/v1","id":1,"kind":"ResourceSlice"}`)}},
			0,
		},
		"windows":       {"---\r\n" + two + "\r\n---\r\n" + two, []Object{{1, 0, raw(two)}, {2, 0, raw(two)}}, 0},
		"marker's line": {two + "\n--- # comment\n" + two, []Object{{1, 0, raw(two)}, {2, 0, raw(two)}}, 0},
		"no alias": {
			"apiVersion: v1\nkind: Pod\ntext: a & b *c\nmore: |\n  *x &x\n---\n" + two,
			[]Object{{2, 0, raw(two)}},
			0,
		},
		"flow": {
			"{apiVersion: resource.k8s.io/v1, kind: ResourceSlice}",
			[]Object{{1, 0, raw(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice"}`)}},
			0,
		},
		"other kinds": {
			"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\n---\napiVersion: v1\nkind: Pod\n---\n" + two,
			[]Object{{3, 0, raw(two)}},
			0,
		},
		"other kind's alpha": {"apiVersion: resource.k8s.io/v1alpha3\nkind: DeviceTaintRule\n", nil, 0},
		"other group": {
			"apiVersion: example.com/v7\nkind: ResourceSlice\n---\n" + two, []Object{{2, 0, raw(two)}}, 0,
		},
		"list": {
			`{"apiVersion":"v1","kind":"List","items":[` + two + `,7,{},` + two + `]}`,
			[]Object{{1, 1, raw(two)}, {1, 4, raw(two)}},
			2,
		},
		"typed list": {
			`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSliceList","items":[{"id":1}]}`,
			[]Object{{1, 1, raw(`{"id":1}`)}},
			0,
		},
		"empty list":  {"apiVersion: v1\nkind: List\nitems: []\n", nil, 0},
		"null list":   {"apiVersion: v1\nkind: List\nitems:\n", nil, 0},
		"list's type": {"apiVersion: v1\nkind: List\nitems: 7\n", nil, 1},
		"list in list": {
			`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"List","items":[` + two +
				`]}]}`,
			[]Object{{1, 2, raw(two)}},
			0,
		},
		"dashes in a value": {
			"apiVersion: resource.k8s.io/v1\nkind: DeviceClass\ntext: |\n  ---\n  x\nmore: a---b\n", nil, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, malformed, err := Objects([]byte(tc.data), "ResourceSlice")
			expect.That(t, err == nil && malformed == tc.malformed,
				"%d malformed, want %d; error %v", malformed, tc.malformed, err)
			content := cmp.Transformer("JSON", func(raw json.RawMessage) (content any) {
				_ = json.Unmarshal(raw, &content)
				return content
			})
			expect.Equal(t, "", tc.want, got, content)
		})
	}
}

func raw(s string) json.RawMessage { return json.RawMessage(s) }

func TestObjectsErrors(t *testing.T) {
	const good = "apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\n"
	for name, tc := range map[string]struct{ data, want string }{
		"another file": {
			"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod}\n",
			"no object of resource.k8s.io, but a Pod of v1",
		},
		"not YAML":  {good + "---\na: [\n", "document 2: error converting YAML to JSON: "},
		"not JSON":  {`{"a":`, "document 1: unexpected EOF"},
		"not UTF-8": {"a: \xff\n", "document 1: error converting YAML to JSON: "},
		"scalar":    {"hello", "document 1: not a Kubernetes object"},
		"no kind":   {"apiVersion: v1\n", "document 1: not a Kubernetes object"},
		"array":     {"[1]", "document 1: not a Kubernetes object"},
		"unknown version": {
			good + "---\n" + strings.Replace(good, "/v1", "/v1alpha1", 1),
			`document 2: ResourceSlice of item 0 has the unknown apiVersion "resource.k8s.io/v1alpha1"`,
		},
		"version in list": {
			"apiVersion: v1\nkind: List\nitems:\n- apiVersion: resource.k8s.io/v2\n  kind: ResourceSlice\n",
			`document 1: ResourceSlice of item 1 has the unknown apiVersion "resource.k8s.io/v2"`,
		},
		"not a number": {"a: .nan\n", "document 1: error converting YAML to JSON: "},
		"key":          {"? [a]\n: b\n", "invalid map key"},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := Objects([]byte(tc.data), "ResourceSlice")
			expect.That(t, err != nil && strings.Contains(err.Error(), tc.want) && got == nil, "error %v, want %q", err, tc.want)
		})
	}
}

func TestScalars(t *testing.T) {
	// As kubectl's library reads YAML 1.1: yes is a boolean, and kubectl quotes the string.
	const data = `{s: a"b\c, q: "7", i: 7, neg: -7, hex: 0x10, octal: 017, under: 1_000, f: 1.5,
  t: true, T: True, yes: yes, nil: null, tilde: ~, e: "", time: 2026-11-21T01:59:17Z, uni: "ü\n", 7: 7,
  big: 12345678901234567890}`
	const want = `{"7":7,"T":true,"big":12345678901234567890,"e":"","f":1.5,"hex":16,"i":7,"neg":-7,"nil":null,` +
		`"octal":15,"q":"7",` +
		`"s":"a\"b\\c","t":true,"tilde":null,"time":"2026-11-21T01:59:17Z","true":true,"under":1000,"uni":"ü\n"}`
	got := must.Get(ToJSON([]byte(data)))(t)
	expect.Equal(t, "", want, string(got))
}

func TestToJSON(t *testing.T) {
	for data, ok := range map[string]bool{
		"a: 1": true, `{"a":1}`: true, "---\na: 1\n": true, "a: [": false,
	} {
		_, err := ToJSON([]byte(data))
		expect.That(t, (err == nil) == ok, "%q: error %v", data, err)
	}
}

func TestAmounts(t *testing.T) {
	quantities := map[string]resource.Quantity{}
	for name, text := range map[string]string{
		"memory": "80Gi", "d.test/cores": "100", "e.test/x": "1500m", "exa": "1E", "exbi": "1Ei", "science": "12e6",
		"zero": "0", "both": "1", "d.test/both": "2", "negative": "-1", "late": "1e999", "": "1",
	} {
		quantities[name] = must.Get(resource.ParseQuantity(text))(t)
	}
	got, rejected := Amounts("d.test", quantities, func(q resource.Quantity) resource.Quantity { return q })
	want := []driver.Amount{
		{Resource: "both", Value: 2},
		{Resource: "cores", Value: 100},
		{Resource: "e.test/x", Value: 1.5},
		{Resource: "exa", Value: 1e18},
		{Resource: "exbi", Value: 1 << 60},
		{Resource: "memory", Value: 80 << 30},
		{Resource: "science", Value: 12e6},
		{Resource: "zero", Value: 0},
	}
	diff := cmp.Diff(want, got)
	expect.That(t, diff == "" && rejected == 3, "%d rejected, want 3; -want +got:\n%s", rejected, diff)
}

// FuzzObjects checks that objects are JSON, and that JSON input is unchanged.
func FuzzObjects(f *testing.F) {
	f.Add([]byte("apiVersion: resource.k8s.io/v1\nkind: ResourceSlice\na: [1, x, {b: ~}]\n---\n{}\n"))
	f.Add([]byte(`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, _, err := Objects(data, "ResourceSlice")
		must.That(t, err == nil || got == nil, "an error and a result")
		for _, o := range got {
			must.That(t, json.Valid(o.Raw) && o.Document >= 1, "%+v", o)
		}
		if j, err := ToJSON(data); err == nil && json.Valid(data) && !bytes.Equal(bytes.TrimSpace(data), j) &&
			data[0] == '{' {
			t.Fatalf("%q became %q", data, j)
		}
	})
}
