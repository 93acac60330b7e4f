package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// maxYAMLRows is the maximum number of lines and commas in a YAML document. It bounds the number of
// nodes, each of which takes a few hundred bytes while it is parsed. The parser bounds the nesting
// within a line.
const maxYAMLRows = 1 << 20

// maxYAMLLine is the maximum length of a line, in bytes. The API server stores no objects above 1.5
// MiB.
const maxYAMLLine = 2 << 20

var (
	errAlias = errors.New("YAML aliases are not accepted")
	errRows  = fmt.Errorf("more than %d lines and elements", maxYAMLRows)
	errLine  = fmt.Errorf("a line of more than %d bytes", maxYAMLLine)
)

// ToJSON converts a file with one document, in YAML or JSON, to JSON, with the bounds of [Objects].
func ToJSON(data []byte) (json.RawMessage, error) {
	if len(data) > MaxBytes {
		return nil, ErrTooLarge
	}
	var found []json.RawMessage
	for chunk := range documents(data) {
		decoded, err := decode(chunk.data)
		if err != nil {
			return nil, err
		}
		found = append(found, decoded...)
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("%d documents where one is expected", len(found))
	}
	return found[0], nil
}

// fromYAML converts the document of a chunk to JSON with the parser of kubectl (sigs.k8s.io/yaml).
// It returns nil for an empty chunk.
func fromYAML(data []byte) ([]json.RawMessage, error) {
	if bytes.Count(data, []byte("\n"))+bytes.Count(data, []byte(",")) > maxYAMLRows {
		return nil, errRows
	}
	for line := range bytes.Lines(data) {
		if len(line) > maxYAMLLine {
			return nil, errLine
		}
	}
	if err := refuseAliases(data); err != nil {
		return nil, err
	}
	raw, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, fmt.Errorf("read YAML: %w", err)
	}
	if bytes.Equal(raw, []byte("null")) {
		return nil, nil
	}
	return []json.RawMessage{raw}, nil
}

// refuseAliases returns an error if the document has an alias. It parses the document only if the
// text has both characters that an alias needs.
func refuseAliases(data []byte) error {
	if bytes.IndexByte(data, '&') < 0 || bytes.IndexByte(data, '*') < 0 {
		return nil
	}
	var document yamlv3.Node
	if err := yamlv3.Unmarshal(data, &document); err != nil {
		return fmt.Errorf("read YAML: %w", err)
	}
	nodes := []*yamlv3.Node{&document}
	for len(nodes) > 0 {
		n := nodes[len(nodes)-1]
		nodes = append(nodes[:len(nodes)-1], n.Content...)
		if n.Kind == yamlv3.AliasNode {
			return fmt.Errorf("read YAML: line %d: %w", n.Line, errAlias)
		}
	}
	return nil
}
