package kube

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/must"
)

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
		must.That(t, ok == (len(reasons) == 0) && len(reasons) <= 1, "used: %v, rejected for %q", ok, reasons)
		if !ok {
			return
		}
		texts := append([]string{facts.Pod.Namespace, facts.Pod.Name, facts.UID}, facts.Meta.Labels...)
		for i, text := range append(texts, facts.Meta.OwnerKind, facts.Meta.OwnerName) {
			must.That(t, (i >= 3 || text != "") && len(text) <= 512 && utf8.ValidString(text), "text %q of %q", text, texts)
		}
		if len(facts.Meta.Labels) != 4 || strings.ContainsAny(facts.UID, "/.") || len(facts.Claims) > 256 ||
			facts.Running < 0 || facts.Running > 0 && !facts.Started {
			t.Fatalf("facts %+v", facts)
		}
	})
}

// Whatever a watch sends, its events are decoded or end it, and an object is JSON.
func FuzzEvents(f *testing.F) {
	f.Add([]byte(`{"type":"ADDED","object":{"metadata":{"resourceVersion":"7"}}}` +
		`{"type":"DELETED","object":{"metadata":{"resourceVersion":"8"}}}`))
	f.Add([]byte(`{"type":"ADDED","object":{"metadata":7}}`))
	f.Add([]byte(`{"type":"ERROR","object":{"code":410,"message":"too old"}}`))
	f.Add([]byte(`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9",` +
		`"annotations":{"k8s.io/initial-events-end":"true"}}}}{"type":"ADD`))
	f.Fuzz(func(t *testing.T, data []byte) {
		valid := func(object json.RawMessage) {
			if len(object) > 0 && !json.Valid(object) {
				t.Fatalf("object %q", object)
			}
		}
		e := &events{
			limit: limited(bytes.NewReader(data), maxEvent), add: valid, fail: func(error) {},
		}
		e.decoder = json.NewDecoder(e.limit)
		for range len(data) + 1 {
			kind, object, err := e.Decode()
			if err != nil {
				return
			}
			if o, ok := object.(*watched); ok {
				valid(o.raw)
			} else if kind != watch.Error {
				t.Fatalf("%s %T", kind, object)
			}
		}
		t.Fatalf("more events than bytes: %q", data)
	})
}
