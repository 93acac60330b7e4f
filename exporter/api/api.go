// Package api generates the JSON schemas of the documents below /api/v1/ from the Go types of
// exporter/present. No program imports it: its libraries serve only the generation.
package api

//go:generate go run ./generate

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/invopop/jsonschema"

	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources"
)

const (
	module = "github.com/dra-exporter/dra-exporter/exporter/api"
	base   = "https://raw.githubusercontent.com/dra-exporter/dra-exporter/main/exporter/api/"
)

// Schemas returns the JSON schemas (draft 2020-12) by file name. The comments of the types become
// descriptions. It reads them from the source files, and so works only in the folder of this
// package.
//
// The schemas allow unknown fields, and have the words of closed lists as examples, because later
// versions may add fields and words.
func Schemas() (map[string][]byte, error) {
	comments, err := readComments()
	if err != nil {
		return nil, fmt.Errorf("read comments: %w", err)
	}
	out := map[string][]byte{}
	for path, of := range map[string]any{
		"v1/snapshot": &present.Report{}, "v1/fit": &present.FitReport{}, "v1/history": &present.HistoryReport{},
		"v1/incidents": &present.IncidentsReport{}, "v1/receipts": &present.ReceiptsReport{},
		"v1/summary": &present.Summary{},
	} {
		if out[path+suffix], err = schemaOf(path, of, comments); err != nil {
			return nil, err
		}
	}
	return out, nil
}

const suffix = ".schema.json"

// readComments returns the comments of all types and fields, each as one line.
func readComments() (map[string]string, error) {
	var r jsonschema.Reflector
	for _, folder := range []string{"../present", "../recorder", "../stall", "../../driver"} {
		if err := r.AddGoComments(module, folder); err != nil {
			return nil, err
		}
	}
	for name, text := range r.CommentMap {
		r.CommentMap[name] = strings.ReplaceAll(text, "\n", " ")
	}
	return r.CommentMap, nil
}

// schemaOf returns the schema of the document at a path below /api/.
func schemaOf(path string, of any, comments map[string]string) ([]byte, error) {
	r := jsonschema.Reflector{AllowAdditionalProperties: true, Mapper: words, CommentMap: comments}
	schema := r.Reflect(of)
	schema.ID, schema.Title = jsonschema.ID(base+path+suffix), "dra-exporter /api/"+path
	text, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write schema: %w", err)
	}
	return append(text, '\n'), nil
}

// words returns the schema of a type whose values are words of a list, or nil for other types.
func words(of reflect.Type) *jsonschema.Schema {
	switch of {
	case reflect.TypeFor[book.State]():
		return list("State of the device, as the page calls it.", book.States())
	case reflect.TypeFor[join.MissingReason]():
		return list("Why the device has no telemetry.", join.MissingReasons())
	case reflect.TypeFor[fit.Kind]():
		return list("What kind of thing the alternative is.", fit.Kinds())
	case reflect.TypeFor[fit.Reason]():
		return list("Why there is no alternative.", fit.Reasons())
	case reflect.TypeFor[join.Attribution]():
		return list("How the device is divided among its claims.", join.Attributions())
	case reflect.TypeFor[podresources.Reason]():
		return list("Why the pod is taken to hold the device.", podresources.Reasons())
	case reflect.TypeFor[recorder.Kind]():
		return list("What happened.", recorder.Kinds())
	case reflect.TypeFor[recorder.Resolution]():
		return list("Why an incident is over.", recorder.Resolutions())
	case reflect.TypeFor[recorder.OwnerKind]():
		return list("Whose series it is.", []recorder.OwnerKind{recorder.OfDevice, recorder.OfClaim, recorder.OfPod})
	case reflect.TypeFor[recorder.Values]():
		return &jsonschema.Schema{
			Type:  "array",
			Items: &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "number"}, {Type: "null"}}},
		}
	default:
		return nil
	}
}

func list[T ~string](description string, words []T) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "string", Description: description}
	for _, w := range words {
		s.Examples = append(s.Examples, string(w))
	}
	return s
}
