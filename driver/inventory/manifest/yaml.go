package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// maxYAMLRows bounds the nodes of a YAML document, each of which costs a few hundred bytes while it
// is read: a node ends at a line's end or at a comma, and nesting within a line is bounded by the
// parser.
const maxYAMLRows = 1 << 20

// maxYAMLLine bounds a line, in bytes: the API server stores no object, and so no text in one, of
// more than 1.5 MiB.
const maxYAMLLine = 2 << 20

var (
	errAlias = errors.New("YAML aliases are not accepted")
	errRows  = fmt.Errorf("more than %d lines and elements", maxYAMLRows)
	errLine  = fmt.Errorf("a line of more than %d bytes", maxYAMLLine)
)

// ToJSON returns a file of one document, in YAML or JSON, as JSON. It refuses what [Objects]
// refuses.
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

// fromYAML returns the document of a chunk, or none if it is empty. It reads YAML as kubectl writes
// it (sigs.k8s.io/yaml), within bounds that limit the memory to a few hundred bytes per line or
// element.
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

// refuseAliases returns an error if the document has an alias. It parses the document only if it
// has both characters that an alias needs, which kubectl's output rarely has.
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
