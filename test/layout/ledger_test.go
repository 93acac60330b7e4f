package layout

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const ledger = "exporter/ledger"

// ledgerParts are the files of exporter/ledger in the order in which data goes up through them:
// each file uses only what files below it declare. The first word of a line is the file, the rest
// is its purpose.
const ledgerParts = `
The whole:
restore          records become the objects of an earlier process
ledger           the order of a tick's steps
save             objects become the records of package saved, and those that have changed are written

What is made of accounts and devices, each by itself:
rows             the rows of a snapshot
claims           of a claim: what it was charged when it ended, how far it came when, its smallest fit
names            who holds a device has a name; accounts of pods that ended young become their workload's

Who is charged for a device when:
follow           holds that begin and end become segments of the timeline, which has a bound
accounts         which account is charged for a hold, and what goes on from one of a name to the next

What is read, divided:
settle           readings wait until the holders are known, and are charged to them, with the possible error
distribution     how a claim's parts of gauges were distributed over time; what advice has to know of its use
partition        parts of what a parent counts reach the holders of its partitions

One device, of these parts:
device           the record of a device, its errors, when it was active, and whether it is still the same
holds            the holds of pods, and what is charged to the holders of a segment
account          what a claim or a pod was charged, and what it knows of its device
fitting          what a claim used of it
meter            its readings and their sums

What everything knows:
name             what identifies claims and pods
config           the configuration
`

// TestLedgerUses checks that what the files of exporter/ledger use of each other goes in one
// direction: functions, types, fields and constants. In the other order, nearly all uses go back.
func TestLedgerUses(t *testing.T) {
	files := map[string][]byte{}
	for file, content := range contents(t, func(file string) bool { return path.Dir(file) == ledger && isGo(file) }) {
		name := strings.TrimSuffix(path.Base(file), ".go")
		if !strings.HasSuffix(name, "_test") && name != "doc" {
			files[name] = content
		}
	}
	order := regexp.MustCompile(`(?m)^\w+(?: {2}| [^:]+$)`).FindAllString(ledgerParts, -1)
	for i := range order {
		order[i] = strings.Fields(order[i])[0]
	}
	expect.Equal(t, "files", slices.Sorted(slices.Values(order)), slices.Sorted(maps.Keys(files)))
	back, uses := backUses(t, files, order)
	for _, use := range back {
		t.Error(use)
	}
	slices.Reverse(order)
	back, again := backUses(t, files, order)
	expect.That(t, uses >= 2000 && again == uses && len(back) == uses, "%d uses between files, %d back", uses, len(back))
}

// backUses returns what files of one package use of an earlier one in the order, and the number of
// all uses between files.
func backUses(t *testing.T, files map[string][]byte, order []string) (back []string, uses int) {
	set, info := token.NewFileSet(), &types.Info{Uses: map[*ast.Ident]types.Object{}}
	var parsed []*ast.File
	for name, text := range files {
		parsed = append(parsed, must.Get(parser.ParseFile(set, name, text, parser.SkipObjectResolution))(t))
	}
	exports := map[string]string{} // the compiler's, of what the package imports, directly or indirectly
	listed := output(t, "go", "list", "-export", "-deps", "-f={{.ImportPath}} {{.Export}}", "./"+ledger)
	for line := range strings.Lines(listed) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		exports[name] = file
	}
	conf := types.Config{Importer: importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})}
	must.Get(conf.Check("p", set, parsed, info))(t)
	for ident, used := range info.Uses {
		if used.Pkg() == nil || used.Pkg().Path() != "p" {
			continue
		}
		from, to := set.File(ident.Pos()).Name(), set.File(used.Pos()).Name()
		if from != to {
			uses++
		}
		if slices.Index(order, from) > slices.Index(order, to) {
			back = append(back, fmt.Sprintf("%v uses %s of %s, which comes before it",
				set.Position(ident.Pos()), ident.Name, to))
		}
	}
	return back, uses
}
