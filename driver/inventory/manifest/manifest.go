// Package manifest finds the objects of the API group resource.k8s.io in the output of kubectl: one
// object, a List, several YAML documents, or any mix of these, in YAML or JSON.
//
// The parser refuses YAML aliases that expand to too much.
//
// Bounds (max…) are for what administrators and DRA drivers send.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// MaxBytes is the maximum size of a file.
const MaxBytes = 64 << 20

const group = "resource.k8s.io"

var errNoObject = errors.New("not a Kubernetes object: no apiVersion and kind")

// Object is an API object of a file.
type Object struct {
	Document int // number of the document, starting at 1, without empty documents
	Item     int // number within the document's List, starting at 1; 0: the document is the object
	Raw      json.RawMessage
}

// Objects returns the objects of one kind of resource.k8s.io, of the versions v1, v1beta2, v1beta1
// and v1alpha3, in the order of the file. Objects of other kinds are ignored. malformed is
// the number of list items that are not objects.
//
// It returns an error that names the document if the file is not valid YAML or JSON, if a document
// is not a Kubernetes object, and if an object of the kind has another version. It also returns an
// error if the file has objects and none of them is of resource.k8s.io.
func Objects(data []byte, kind string) (objects []Object, malformed int, err error) {
	f := finder{kind: kind}
	for documents := yamlutil.NewYAMLOrJSONDecoder(bytes.NewReader(data), len(data)); ; {
		var raw json.RawMessage
		err := documents.Decode(&raw)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && (len(raw) == 0 || string(raw) == "null") {
			continue
		}
		f.document++
		if err == nil {
			err = f.top(raw)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("document %d: %w", f.document, err)
		}
	}
	if f.foreign != "" && !f.ours {
		return nil, 0, fmt.Errorf("no object of %s, but a %.64s", group, f.foreign)
	}
	return f.objects, f.malformed, nil
}

// finder collects the objects of one kind.
type finder struct {
	kind      string
	document  int
	objects   []Object
	malformed int
	ours      bool   // an object of the group, of any kind, was found
	foreign   string // kind and version of an object of another group
}

// header has the fields that every object has.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func (f *finder) top(raw json.RawMessage) error {
	var h header
	if json.Unmarshal(raw, &h) != nil || h.APIVersion == "" || h.Kind == "" {
		return errNoObject
	}
	item := 0
	return f.visit(raw, h, &item)
}

// visit adds the object, or the items of the list. item counts the items of the document.
func (f *finder) visit(raw json.RawMessage, h header, item *int) error {
	if itemKind, ok := strings.CutSuffix(h.Kind, "List"); ok {
		return f.list(raw, header{h.APIVersion, itemKind}, item)
	}
	apiGroup, version, _ := strings.Cut(h.APIVersion, "/")
	if apiGroup == group {
		f.ours = true
	} else {
		f.foreign = h.Kind + " of " + h.APIVersion
	}
	if h.Kind != f.kind || apiGroup != group {
		return nil
	}
	if !slices.Contains([]string{"v1", "v1beta2", "v1beta1", "v1alpha3"}, version) {
		return fmt.Errorf("%s of item %d has the unknown apiVersion %.64q (known: v1, v1beta2, v1beta1, v1alpha3 of %s)",
			h.Kind, *item, h.APIVersion, group)
	}
	f.objects = append(f.objects, Object{Document: f.document, Item: *item, Raw: raw})
	return nil
}

// list visits the items of a list. Items of a typed list, which the API server sends, may lack
// apiVersion and kind.
func (f *finder) list(raw json.RawMessage, typed header, item *int) error {
	items, ok := itemsOf(raw)
	if !ok {
		f.malformed++
		return nil
	}
	for _, raw := range items {
		*item++
		h := typed
		if json.Unmarshal(raw, &h) != nil || h.Kind == "" {
			f.malformed++
			continue
		}
		if err := f.visit(raw, h, item); err != nil {
			return err
		}
	}
	return nil
}

func itemsOf(raw json.RawMessage) ([]json.RawMessage, bool) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	err := json.Unmarshal(raw, &list)
	return list.Items, err == nil
}

// ToJSON converts a document, in YAML or JSON, to JSON.
func ToJSON(data []byte) (json.RawMessage, error) {
	if json.Valid(data) {
		return data, nil
	}
	raw, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, fmt.Errorf("read YAML: %w", err)
	}
	return raw, nil
}
