package kube

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// smallBounds are bounds that fuzzed inputs reach.
func smallBounds() bounds { return bounds{page: 1 << 10, object: 256} }

// The objects of a list are JSON within the bounds, and equal those that the standard library
// finds.
func FuzzPage(f *testing.F) {
	f.Add([]byte(`{"kind":"PodList","metadata":{"resourceVersion":"5","continue":"a"},"items":[{"a":1},null,[]]}`))
	f.Add([]byte(`{"items":null,"metadata":{}}`))
	f.Add([]byte(`{"items":[{"a":`))
	f.Add([]byte(`{"items":["` + strings.Repeat("a", 500) + `"]}`))
	f.Add([]byte(`{"items":["` + strings.Repeat("a", 440) + `"`)) // some of it is read with what is before it
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

// A pod object either is counted as rejected or has a name, facts within their bounds, and labels
// that can be exported.
func FuzzPod(f *testing.F) {
	f.Add([]byte(`{"metadata":{"namespace":"n","name":"p","uid":"6d2f2b2e-0000-4000-8000-000000000001",
		"labels":{"app":"a"},"annotations":{"team":"\u0001"},
		"ownerReferences":[{"apiVersion":"v1","kind":"Job","name":"j","uid":"u","controller":true}]},
		"spec":{"nodeName":"node1","resourceClaims":[{"name":"gpu","resourceClaimTemplateName":"t"}],
		"containers":[{"name":"main","resources":{"claims":[{"name":"gpu","request":"r"}],
		"requests":{"example.com/gpu":"1"}}}]},
		"status":{"phase":"Running","resourceClaimStatuses":[{"name":"gpu","resourceClaimName":"p-gpu-x"}],
		"extendedResourceClaimStatus":{"resourceClaimName":"e","requestMappings":[
		{"containerName":"main","requestName":"r","resourceName":"example.com/gpu"}]},
		"containerStatuses":[{"name":"main","restartCount":1,"state":{"running":{}},
		"allocatedResourcesStatus":[{"name":"claim:gpu","resources":[{"resourceID":"d/p/g","health":"Unhealthy"}]}]}]}}`))
	f.Add([]byte(`{"metadata":{"namespace":"n","name":"p","uid":"1d2f2b2e000040008000000000000001",
		"annotations":{"kubernetes.io/config.source":"file"}},"status":{"phase":"Failed"}}`))
	f.Add([]byte(`{"metadata":{"namespace":"n","name":"p","uid":"../.."}}`))
	selection := &podresources.Selection{
		PodLabels: []podresources.Chosen{{Key: "app", Name: "app"}}, PodAnnotations: []podresources.Chosen{
			{Key: "team", Name: "team"},
		},
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var reasons []driver.Reason
		feed := podFeed{
			now: time.Now, selection: selection, rejected: func(r driver.Reason) { reasons = append(reasons, r) },
		}
		facts, ok := feed.parse(data)
		if ok != (len(reasons) == 0) || len(reasons) > 1 {
			t.Fatalf("used: %v, rejected for %q", ok, reasons)
		}
		if !ok {
			return
		}
		texts := append([]string{facts.Pod.Namespace, facts.Pod.Name, facts.UID}, facts.Meta.Labels...)
		for i, text := range append(texts, facts.Meta.OwnerKind, facts.Meta.OwnerName) {
			if i < 3 && text == "" || len(text) > 512 || !utf8.ValidString(text) {
				t.Fatalf("text %q of %q", text, texts)
			}
		}
		if len(facts.Meta.Labels) != 4 || strings.ContainsAny(facts.UID, "/.") || len(facts.Claims) > 256 ||
			facts.Running < 0 || facts.Running > 0 && !facts.Started {
			t.Fatalf("facts %+v", facts)
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
		watched := feed{now: time.Now, slowed: func() {}, bounds: smallBounds()}
		watched.update = func(object json.RawMessage, _ bool) {
			if !json.Valid(object) || len(object) > smallBounds().object {
				t.Fatalf("object %q", object)
			}
		}
		version := "1"
		if err := watched.receive(t.Context(), bytes.NewReader(data), &version); version == "" {
			t.Fatalf("no version, error %v", err)
		}
	})
}
