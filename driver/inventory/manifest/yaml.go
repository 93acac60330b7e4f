package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// maxYAMLRows bounds the nodes of a YAML document, each of which costs a few hundred bytes while it is read: a node
// ends at a line's end or at a comma, and nesting within a line is bounded by the parser.
const maxYAMLRows = 1 << 20

// maxYAMLLine bounds a line, in bytes: the API server stores no object, and so no text in one, of more than 1.5 MiB.
const maxYAMLLine = 2 << 20

var (
	errAlias = errors.New("YAML aliases are not accepted")
	errKey   = errors.New("a YAML key is not a scalar")
	errRows  = fmt.Errorf("more than %d lines and elements", maxYAMLRows)
	errLine  = fmt.Errorf("a line of more than %d bytes", maxYAMLLine)
)

// ToJSON returns a file of one document, in YAML or JSON, as JSON. It refuses what [Objects] refuses.
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

// fromYAML returns the documents of a chunk, less the empty ones.
func fromYAML(data []byte) ([]json.RawMessage, error) {
	if bytes.Count(data, []byte("\n"))+bytes.Count(data, []byte(",")) > maxYAMLRows {
		return nil, errRows
	}
	for line := range bytes.Lines(data) {
		if len(line) > maxYAMLLine {
			return nil, errLine
		}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var out []json.RawMessage
	for {
		var node yaml.Node
		switch err := decoder.Decode(&node); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("read YAML: %w", err)
		}
		raw, err := appendNode(nil, &node)
		if err != nil {
			return nil, fmt.Errorf("read YAML: %w", err)
		}
		if !bytes.Equal(raw, []byte("null")) {
			out = append(out, raw)
		}
	}
}

// appendNode appends the node as JSON. Working on nodes, and not on decoded values, is what keeps an alias an alias.
func appendNode(b []byte, n *yaml.Node) ([]byte, error) {
	switch n.Kind {
	case yaml.DocumentNode:
		if len(n.Content) == 0 {
			return append(b, "null"...), nil
		}
		return appendNode(b, n.Content[0])
	case yaml.MappingNode:
		return appendMapping(b, n)
	case yaml.SequenceNode:
		return appendSequence(b, n)
	case yaml.ScalarNode:
		return appendScalar(b, n)
	case yaml.AliasNode:
		return nil, fmt.Errorf("line %d: %w", n.Line, errAlias)
	default:
		return append(b, "null"...), nil
	}
}

func appendMapping(b []byte, n *yaml.Node) ([]byte, error) {
	b = append(b, '{')
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			return nil, fmt.Errorf("line %d: %w", key.Line, errAlias)
		}
		if key.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("line %d: %w", key.Line, errKey)
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, key.Value), ':')
		var err error
		if b, err = appendNode(b, value); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendSequence(b []byte, n *yaml.Node) ([]byte, error) {
	b = append(b, '[')
	for i, item := range n.Content {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = appendNode(b, item); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

// appendScalar keeps numbers, booleans and null; everything else, and numbers that JSON does not know (.nan), is a
// string.
func appendScalar(b []byte, n *yaml.Node) ([]byte, error) {
	switch n.ShortTag() {
	case "!!null":
		return append(b, "null"...), nil
	case "!!bool", "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return append(b, n.Value...), nil
		}
		var value any
		if n.Decode(&value) == nil {
			if raw, err := json.Marshal(value); err == nil {
				return append(b, raw...), nil
			}
		}
	}
	return appendString(b, n.Value), nil
}

// appendString quotes s; the common case of plain printable ASCII costs no allocation.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			raw, _ := json.Marshal(s) // a string always can be
			return append(b, raw...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}
