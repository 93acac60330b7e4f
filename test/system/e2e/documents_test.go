package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/test/docs"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/node"
)

// setting has the conditions under which a test runs a command of a document.
type setting struct {
	before     string // what a reader has done, in shell
	background bool   // it runs until it is stopped; the next command runs when it listens on the exporter's port
}

// settings are those of commands that need preparation or do not end by themselves.
func settings() map[string]setting {
	return map[string]setting{
		"make run": {before: "export FOR=5s"}, // otherwise it runs until Ctrl-C
		"bin/dra-exporter --node-name=$(hostname) --inventory.file=slices.yaml": {
			before:     "cp test/system/e2e/testdata/recorded/resourceslices.yaml slices.yaml",
			background: true,
		},
	}
}

// commandTimeout bounds a command on a slow machine.
const commandTimeout = 15 * time.Minute

// TestDocuments runs the commands of the documents that need no cluster, each document as a reader
// would: in a copy of the tree, and with a kubelet. The copy is mounted at the path of the tree, so
// that go's build cache is valid for it. Processes that a command starts end with the document.
func TestDocuments(t *testing.T) {
	t.Parallel()
	root := must.Get(filepath.Abs(filepath.Join("..", "..", "..")))(t)
	all := must.Get(docs.Read(root))(t)
	unused := settings()
	for _, d := range all {
		for _, c := range docs.Commands([]docs.Document{d}) {
			delete(unused, c.Text)
		}
		if blocks := d.Blocks(); slices.ContainsFunc(blocks, isLocal) {
			t.Run(d.Path, func(t *testing.T) {
				t.Parallel()
				follow(t, root, d.Path, blocks)
			})
		}
	}
	for command := range unused {
		t.Errorf("no document has the command %q, for which there is a setting", command)
	}
}

// isLocal reports whether a block has a command that this test runs.
func isLocal(b docs.Block) bool {
	return b.Language == docs.Shell &&
		slices.ContainsFunc(b.Commands(), func(c docs.Command) bool { return c.Runner() == docs.Local })
}

// follow runs the blocks of a document in a copy of the tree and in separate namespaces.
func follow(t *testing.T, root, document string, blocks []docs.Block) {
	dir, err := os.MkdirTemp("", "docs") //nolint:usetesting // t.TempDir's path is too long for a socket
	must.Do(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	copied := filepath.Join(dir, "tree")
	copyTree(t, root, copied)
	n := newNode(t)
	if err := n.kubelet.Set(&v1.ListPodResourcesResponse{}); err != nil { // check fails where no device has telemetry
		t.Fatal(err)
	}
	script := []string{
		"set -euo pipefail",
		"mount -t tmpfs none /var/lib",
		"mkdir -p /var/lib/kubelet/pod-resources",
		"mount --bind " + filepath.Dir(n.Path(node.Socket)) + " /var/lib/kubelet/pod-resources",
		"[ ! -d .git ] || { mkdir " + copied + "/.git; mount --bind -o ro .git " + copied + "/.git; }",
		"[ ! -f .git ] || cp .git " + copied,
		"mount --rbind " + copied + " " + root,
		"cd " + root,
		"ip link set lo up",
	}
	if !strings.HasPrefix(root, "/tmp/") {
		script = append(script, "mkdir "+dir+"/tmp", "mount --bind "+dir+"/tmp /tmp")
	}
	script = append(script, steps(t, blocks, copied)...)
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child",
		"--mount-proc", "bash", "-c", strings.Join(script, "\n"))
	cmd.Dir, cmd.Env = root, environment()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	began := time.Now()
	if err := cmd.Run(); err != nil {
		t.Errorf("%s: %v; the last command failed:\n%s", document, err, lastCommand(said.String(), document))
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	t.Logf("it took %v, and %v of CPU time", time.Since(began).Round(time.Second), cpu.Round(time.Second))
}

// lastCommand returns the end of the output of a document, from the last command on.
func lastCommand(said, document string) string {
	const most = 4000
	begin := max(0, strings.LastIndex(said, "== "+document+":"))
	title, output, _ := strings.Cut(said[begin:], "\n")
	return title + "\n" + output[max(0, len(output)-most):]
}

// steps returns the blocks of a document as lines of a script: commands, and files to be written or
// changed, in their order.
func steps(t *testing.T, blocks []docs.Block, tree string) []string {
	var script []string
	staged := 0
	stage := func(text string) string {
		staged++
		name := fmt.Sprintf(".staged-%d", staged)
		must.Do(t, os.WriteFile(filepath.Join(tree, name), []byte(text), 0o600))
		return name
	}
	changed := map[string]string{} // the files as they are at this step
	known := settings()
	for _, b := range blocks {
		switch b.Language {
		case docs.Diff:
			if changed[b.File] == "" {
				changed[b.File] = string(readFile(t, filepath.Join(tree, b.File)))
			}
			text := must.Get(b.Apply(changed[b.File]))(t)
			changed[b.File] = text
		case docs.Go:
			changed[b.File] = b.Text
		}
		if b.Language == docs.Diff || b.Language == docs.Go {
			script = append(script, "install -D -m 644 "+stage(changed[b.File])+" "+b.File)
		}
		for _, c := range b.Commands() {
			if b.Language != docs.Shell || c.Runner() != docs.Local {
				continue
			}
			s := known[c.Text]
			run := fmt.Sprintf("timeout %d bash -euo pipefail %s", int(commandTimeout.Seconds()), stage(c.Text+"\n"))
			if s.background {
				run += " & started=$!; until (exec 3<>/dev/tcp/127.0.0.1/10985) 2>/dev/null; do kill -0 $started; sleep 0.1; done"
			}
			script = append(script, "echo '== "+strings.ReplaceAll(c.String(), "'", "")+"'", s.before, run)
		}
	}
	return script
}

func readFile(t *testing.T, path string) []byte { return must.Get(os.ReadFile(path))(t) }

// environment returns the environment of a reader, without the variables that make exports to these
// tests.
func environment() []string {
	out := []string{"GIT_OPTIONAL_LOCKS=0"} // git diff would write to the index
	for _, variable := range os.Environ() {
		switch name, _, _ := strings.Cut(variable, "="); name {
		case "DRA_EXPORTER", "PROMTOOL", "PROMETHEUS", "PINT", "SCHEMA", "VERSION", "REVISION",
			"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES":
		default:
			out = append(out, variable)
		}
	}
	return out
}

// copyTree copies the files that git tracks, and the untracked ones that it does not ignore.
func copyTree(t *testing.T, root, to string) {
	list := exec.CommandContext(t.Context(), "git", "-C", root, "-c", "safe.directory=*",
		"ls-files", "-z", "--cached", "--others", "--exclude-standard")
	listed, err := list.Output()
	must.That(t, err == nil, "list the tree: %v", err)
	for path := range strings.SplitSeq(strings.TrimSuffix(string(listed), "\x00"), "\x00") {
		info, err := os.Stat(filepath.Join(root, path))
		if os.IsNotExist(err) {
			continue // removed, and not committed yet
		}
		must.Do(t, err)
		content := must.Get(os.ReadFile(filepath.Join(root, path)))(t)
		must.Do(t, os.MkdirAll(filepath.Dir(filepath.Join(to, path)), 0o755))
		must.Do(t, os.WriteFile(filepath.Join(to, path), content, info.Mode().Perm()))
	}
}
