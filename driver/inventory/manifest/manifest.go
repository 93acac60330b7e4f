// Package manifest finds the objects of the API group resource.k8s.io in the output of kubectl: one
// object, a List, several YAML documents, or any mix of these, in YAML or JSON.
//
// Input is not trusted: its size, depth and number of rows are bounded, and YAML aliases, which can
// expand a few bytes to gigabytes and which kubectl does not write, are rejected.
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
)

const (
	// MaxBytes is the maximum size of a file.
	MaxBytes = 64 << 20
	// maxListDepth is the maximum depth of lists within lists.
	maxListDepth = 4

	group = "resource.k8s.io"
)

// ErrTooLarge is the error for a file with more than MaxBytes.
var ErrTooLarge = errors.New("file too large")

var errNoObject = errors.New("not a Kubernetes object: no apiVersion and kind")

// Object is an API object of a file.
type Object struct {
	Document int // number of the document, starting at 1, without empty documents
	Item     int // number within the document's List, starting at 1; 0: the document is the object
	Raw      json.RawMessage
}

// Objects returns the objects of one kind of resource.k8s.io, of the versions v1, v1beta2, v1beta1,
// v1alpha3 and v1alpha2, in the order of the file. Objects of other kinds are ignored. malformed is
// the number of list items that are not objects.
//
// It returns an error that names the document if the file is not valid YAML or JSON, if a document
// is not a Kubernetes object, and if an object of the kind has another version. It also returns an
// error if the file has objects and none of them is of resource.k8s.io.
func Objects(data []byte, kind string) (objects []Object, malformed int, err error) {
	if len(data) > MaxBytes {
		return nil, 0, fmt.Errorf("%w: %d bytes, at most %d are read", ErrTooLarge, len(data), MaxBytes)
	}
	f := finder{kind: kind}
	for chunk := range documents(data) {
		if err := f.chunk(chunk); err != nil {
			return nil, 0, err
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

func (f *finder) chunk(c chunk) error {
	documents, err := decode(c.data)
	if err != nil {
		return fmt.Errorf("document %d (from line %d): %w", f.document+1, c.line, err)
	}
	for _, raw := range documents {
		f.document++
		if err := f.top(raw); err != nil {
			return fmt.Errorf("document %d (from line %d): %w", f.document, c.line, err)
		}
	}
	return nil
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
	return f.visit(raw, h, &item, 0)
}

// visit adds the object, or the items of the list. item counts the items of the document.
func (f *finder) visit(raw json.RawMessage, h header, item *int, depth int) error {
	if itemKind, ok := strings.CutSuffix(h.Kind, "List"); ok {
		return f.list(raw, header{h.APIVersion, itemKind}, item, depth)
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
	if !slices.Contains([]string{"v1", "v1beta2", "v1beta1", "v1alpha3", "v1alpha2"}, version) {
		return fmt.Errorf("%s of item %d has the unknown apiVersion %.64q (known: v1, v1beta2, v1beta1, v1alpha3, v1alpha2 "+
			"of %s)",
			h.Kind, *item, h.APIVersion, group)
	}
	f.objects = append(f.objects, Object{Document: f.document, Item: *item, Raw: raw})
	return nil
}

// list visits the items of a list. Items of a typed list, which the API server sends, may lack
// apiVersion and kind.
func (f *finder) list(raw json.RawMessage, typed header, item *int, depth int) error {
	items, ok := itemsOf(raw)
	if !ok || depth == maxListDepth {
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
		if err := f.visit(raw, h, item, depth+1); err != nil {
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

// chunk is the text between two document markers.
type chunk struct {
	data []byte
	line int // number of its first line, starting at 1
}

// documents splits data at document markers: lines that begin with "---" or "...", followed by a
// space or the end of the line. YAML has them nowhere else, even in a scalar, and JSON has none.
func documents(data []byte) func(yield func(chunk) bool) {
	return func(yield func(chunk) bool) {
		line := 1
		for len(data) > 0 {
			end, next := nextMarker(data)
			if c := (chunk{data[:end], line}); len(bytes.TrimSpace(c.data)) > 0 && !yield(c) {
				return
			}
			line += bytes.Count(data[:end], []byte("\n"))
			data = data[next:]
		}
	}
}

// nextMarker returns the end of the first chunk and the start of the next one, behind the marker.
func nextMarker(data []byte) (end, next int) {
	for pos := 0; pos < len(data); {
		rest := data[pos:]
		marker := bytes.HasPrefix(rest, []byte("---")) || bytes.HasPrefix(rest, []byte("..."))
		if marker && (len(rest) == 3 || strings.IndexByte(" \t\r\n", rest[3]) >= 0) {
			return pos, pos + 3
		}
		newline := bytes.IndexByte(rest, '\n')
		if newline < 0 {
			break
		}
		pos += newline + 1
	}
	return len(data), len(data)
}

// decode returns the documents of a chunk as JSON.
func decode(data []byte) ([]json.RawMessage, error) {
	if first := bytes.TrimSpace(data)[0]; first != '{' && first != '[' {
		return fromYAML(data)
	}
	documents, err := fromJSON(data)
	if err == nil {
		return documents, nil
	}
	if documents, err := fromYAML(data); err == nil { // flow style: JSON without quotes
		return documents, nil
	}
	return nil, err
}

func fromJSON(data []byte) ([]json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	var out []json.RawMessage
	for {
		var raw json.RawMessage
		switch err := decoder.Decode(&raw); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("read JSON: %w", err)
		}
		out = append(out, raw)
	}
}
