// Package docs reads the documents of the tree, for tests of their links, their code blocks, and
// the commands in these.
//
// The tests of this package check what needs no other program. Of test/system, e2e runs commands,
// deploy runs those that need a cluster, and dashboards sends the queries to a real Prometheus.
package docs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The languages of code blocks that are tested.
const (
	Shell  = "sh"     // commands, which a test runs
	PromQL = "promql" // one query, sent to a real Prometheus
	Sample = "prom"   // samples of the demo: "…" stands for omitted labels
	YAML   = "yaml"
	Go     = "go"   // a file, which a test writes
	Diff   = "diff" // a change of a file, which a test applies
)

// Document is a Markdown file.
type Document struct {
	Path  string // relative to the root of the tree, with slashes
	Lines []string
}

// Block is a fenced code block.
type Block struct {
	Document string
	Line     int // number of its first line, from 1
	Language string
	File     string // the file in "```go title=FILE"
	Text     string
}

// Command is a command of a code block: one line, or several that end with a backslash but for the
// last.
type Command struct {
	Document string
	Line     int
	Text     string // without a comment at its end
}

// String returns where the command is, and the command.
func (c Command) String() string { return fmt.Sprintf("%s:%d: %s", c.Document, c.Line, c.Text) }

// Read returns the documents below root, in lexical order. Hidden folders and what tools have put
// there are left out.
func Read(root string) ([]Document, error) {
	var all []Document
	tree := os.DirFS(root)
	err := fs.WalkDir(tree, ".", func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && (name[0] == '.' || name == "node_modules" || name == "bin"):
			return fs.SkipDir
		case entry.IsDir() || filepath.Ext(name) != ".md":
			return nil
		}
		text, err := fs.ReadFile(tree, path)
		all = append(all, Document{Path: path, Lines: strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read documents: %w", err)
	}
	return all, nil
}

// Find returns the document with a path.
func Find(all []Document, path string) (Document, error) {
	for _, d := range all {
		if d.Path == path {
			return d, nil
		}
	}
	return Document{}, fmt.Errorf("there is no document %s", path)
}

// Blocks returns the document's code blocks. A fence is ``` or ~~~; one that is not closed ends
// with the document.
func (d Document) Blocks() []Block {
	var all []Block
	fence := ""
	for i, line := range d.Lines {
		text := strings.TrimSpace(line)
		switch {
		case fence == "" && (strings.HasPrefix(text, "```") || strings.HasPrefix(text, "~~~")):
			fence = text[:3]
			language, rest, _ := strings.Cut(text[3:], " ")
			file, _ := strings.CutPrefix(rest, "title=")
			all = append(all, Block{Document: d.Path, Line: i + 2, Language: language, File: file})
		case fence == "":
		case text == fence:
			fence = ""
		default:
			all[len(all)-1].Text += line + "\n"
		}
	}
	return all
}

// Prose returns the document's lines. Those of code blocks are empty.
func (d Document) Prose() []string {
	lines := slices.Clone(d.Lines)
	for _, b := range d.Blocks() {
		clear(lines[b.Line-2 : min(b.Line+strings.Count(b.Text, "\n"), len(lines))])
	}
	return lines
}

// Blocks returns all code blocks of a language.
func Blocks(all []Document, language string) []Block {
	var found []Block
	for _, d := range all {
		for _, b := range d.Blocks() {
			if b.Language == language {
				found = append(found, b)
			}
		}
	}
	return found
}

// Apply applies a diff to a text: hunks without line numbers, separated by lines that begin with
// @@. Each must match at exactly one place.
func (b Block) Apply(text string) (string, error) {
	for _, hunk := range regexp.MustCompile(`(?m)^@@.*\n`).Split(b.Text, -1) {
		before, after := "", ""
		for line := range strings.Lines(hunk) {
			if line[0] != '+' {
				before += line[1:]
			}
			if line[0] != '-' {
				after += line[1:]
			}
		}
		if n := strings.Count(text, before); n != 1 {
			return "", fmt.Errorf("%s:%d: a hunk fits at %d places of %s:\n%s", b.Document, b.Line, n, b.File, before)
		}
		text = strings.Replace(text, before, after, 1)
	}
	return text, nil
}

// Commands returns the commands of all shell blocks, in the order of the documents.
func Commands(all []Document) []Command {
	var found []Command
	for _, b := range Blocks(all, Shell) {
		found = append(found, b.Commands()...)
	}
	return found
}

// Commands returns the commands of a shell block.
func (b Block) Commands() []Command {
	var found []Command
	comment := regexp.MustCompile(`(^|\s+)#\s.*$`)
	continued := false
	for i, line := range strings.Split(strings.TrimSuffix(b.Text, "\n"), "\n") {
		line = strings.TrimSpace(comment.ReplaceAllString(line, ""))
		text, more := strings.CutSuffix(line, "\\")
		text = strings.TrimSpace(text)
		switch {
		case text == "":
		case continued:
			found[len(found)-1].Text += " " + text
		default:
			found = append(found, Command{Document: b.Document, Line: b.Line + i, Text: text})
		}
		continued = more
	}
	return found
}

// Runner is the test that runs a command.
type Runner uint8

// The runners.
const (
	Local   Runner = iota // test/system/e2e, in a copy of the tree
	Cluster               // test/system/deploy, on the test cluster
	Nobody                // no test, for the reason in Exceptions
)

// Exception is a command that no test runs literally.
type Exception struct {
	Command string // as in the document
	Reason  string
}

// Exceptions returns the commands in documents that no test runs, with reasons. A test fails if no
// document has the command.
func Exceptions() []Exception {
	const (
		ci      = "CI runs this target itself (.ci/run)"
		long    = "it takes minutes; CI runs a short part of the same tests (make test-e2e)"
		network = "it needs the network"
		docker  = "it needs Docker; deployments/compose tests the file"
		kind    = "it needs kind and Docker; test/system/deploy renders these values and applies these files"
	)
	return []Exception{
		{"make test", ci},
		{"make test lint verify", ci},
		{"make test-e2e", ci},
		{"make attack", long},
		{"make test-integrations", "it builds programs of other stacks for minutes"},
		{"make soak", long},
		{"make audit", network},
		{"make demo-stack", "test/system/dashboards runs it (TestStack)"},
		{"docker compose -f deployments/compose/compose.yaml up", docker},
		{"docker compose -f deployments/compose/compose.yaml down --volumes", docker},
		{"make fuzz FUZZTIME=10m", long},
		{"make attack RUN=gzip", long},
		{"git clone https://github.com/dra-exporter/dra-exporter && cd dra-exporter", network},
		{"git clone https://github.com/kubernetes-sigs/dra-example-driver /tmp/dra-example-driver", network},
		{"(cd /tmp/dra-example-driver && ./demo/build-driver.sh && ./demo/create-cluster.sh)", kind},
		{
			"helm upgrade -i dra-example-driver /tmp/dra-example-driver/deployments/helm/dra-example-driver" +
				" -n dra-example-driver --create-namespace", kind,
		},
		{"make image VERSION=0.1.0", "it needs Docker; test/system/deploy builds the same image without it, and runs it"},
		{"kind load docker-image ghcr.io/dra-exporter/dra-exporter:0.1.0 --name dra-example-driver-cluster", kind},
	}
}

// Runner returns the test that runs the command.
func (c Command) Runner() Runner {
	for _, e := range Exceptions() {
		if e.Command == c.Text {
			return Nobody
		}
	}
	if strings.HasPrefix(c.Text, "kubectl ") || strings.HasPrefix(c.Text, "helm ") {
		return Cluster
	}
	return Local
}
