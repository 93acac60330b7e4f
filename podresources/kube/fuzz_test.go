package kube

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// smallBounds are the bounds of what is fuzzed, so that inputs reach them.
func smallBounds() bounds { return bounds{page: 1 << 10, object: 256} }

// The objects of a list are JSON within the bounds, and those that the standard library finds.
func FuzzPage(f *testing.F) {
	f.Add([]byte(`{"kind":"PodList","metadata":{"resourceVersion":"5","continue":"a"},"items":[{"a":1},null,[]]}`))
	f.Add([]byte(`{"items":null,"metadata":{}}`))
	f.Add([]byte(`{"items":[{"a":`))
	f.Add([]byte(`{"items":["` + strings.Repeat("a", 500) + `"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		n := 0
		p := page{bounds: smallBounds(), add: func(object json.RawMessage) {
			n++
			if !json.Valid(object) || len(object) > smallBounds().object {
				t.Fatalf("object %q", object)
			}
		}}
		err := p.read(bytes.NewReader(data))
		if p.objects != n {
			t.Fatalf("%d objects are counted, %d were added", p.objects, n)
		}
		var whole struct {
			Items []json.RawMessage `json:"items"`
		}
		once := bytes.Count(bytes.ToLower(data), []byte("items")) == 1 && !bytes.Contains(data, []byte(`\`))
		if err == nil && once && json.Unmarshal(data, &whole) == nil && bytes.Contains(data, []byte(`"items"`)) &&
			len(whole.Items) != n && len(whole.Items) > 0 {
			t.Fatalf("%d objects, want %d", n, len(whole.Items))
		}
	})
}

// The objects of the events of a watch are JSON within the bounds.
func FuzzReceive(f *testing.F) {
	f.Add([]byte(`{"type":"ADDED","object":{"metadata":{"resourceVersion":"7"}}}` +
		`{"type":"DELETED","object":{"metadata":{"resourceVersion":"8"}}}`))
	f.Add([]byte(`{"type":"ADDED","object":{"a":"` + strings.Repeat("a", 500) + `"}}`))
	f.Add([]byte(`{"type":"ERROR","object":{"code":410,"message":"too old"}}`))
	f.Add([]byte(`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}{"type":"ADD`))
	f.Fuzz(func(t *testing.T, data []byte) {
		watched := feed{bounds: smallBounds(), update: func(object json.RawMessage, _ bool) {
			if !json.Valid(object) || len(object) > smallBounds().object {
				t.Fatalf("object %q", object)
			}
		}}
		version := "1"
		if err := watched.receive(bytes.NewReader(data), &version); version == "" {
			t.Fatalf("no version, error %v", err)
		}
	})
}
