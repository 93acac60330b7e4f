// Command audit lists the modules that each go.mod of a tree links: version, age, license. It needs
// nothing but the modules themselves.
//
//	go run ./audit FOLDER...
//
// The exit status is 1 if a shipped program links a module whose license is not permissive or not
// recognized. Such modules of tests and tools are only listed at the end.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/licensecheck"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout, time.Now()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// shipped returns the packages of the released programs, relative to the folder of their module.
const shipped = "./exporter/cmd/..."

// linked is a module that a package of a go.mod links.
type linked struct {
	Path    string
	Version string
	Time    *time.Time // of the version; nil if it is not known
	Dir     string
	Main    bool
	Replace *linked

	license string // identifiers of SPDX, or "unknown"
	shipped bool
}

// run lists the modules of the folders, each of which has a go.mod.
func run(ctx context.Context, folders []string, w io.Writer, now time.Time) error {
	strict := map[string]*linked{} // not permissive, by path and version
	for _, folder := range folders {
		modules, err := modulesOf(ctx, folder)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(w, "\n== %s: %d modules\n", filepath.Join(folder, "go.mod"), len(modules))
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, m := range modules {
			_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", m.Path, m.Version, m.age(now), m.license, m.use())
			if !permissive(m.license) {
				key := m.Path + " " + m.Version
				if strict[key] == nil || m.shipped {
					strict[key] = m
				}
			}
		}
		if err := table.Flush(); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
	}
	return report(w, strict)
}

// report lists the modules whose license is not permissive. It returns an error if one is shipped.
func report(w io.Writer, strict map[string]*linked) error {
	var names, bad []string
	for key, m := range strict {
		names = append(names, fmt.Sprintf("%s: %s, for %s", key, m.license, m.use()))
		if m.shipped {
			bad = append(bad, key)
		}
	}
	slices.Sort(names)
	_, _ = fmt.Fprintf(w, "\n== licenses that are not permissive: %d\n", len(names))
	for _, name := range names {
		_, _ = fmt.Fprintln(w, name)
	}
	if len(bad) > 0 {
		slices.Sort(bad)
		return fmt.Errorf("the programs that are shipped link what has no permissive license: %s", strings.Join(bad, ", "))
	}
	return nil
}

// modulesOf returns the modules that the packages, tests and tools of a go.mod link, without those
// of this tree, sorted by path.
func modulesOf(ctx context.Context, folder string) ([]*linked, error) {
	all := map[string]*linked{}
	for _, packages := range [][]string{{"-test", "./..."}, {"tool"}, {shipped}} {
		modules, err := list(ctx, folder, packages...)
		if err != nil {
			return nil, err
		}
		for _, m := range modules {
			if m.Replace != nil {
				m = m.Replace
			}
			if m.Main || m.Version == "" {
				continue // of this tree
			}
			if all[m.Path] == nil {
				all[m.Path] = m
			}
			all[m.Path].shipped = packages[0] == shipped
		}
	}
	var out []*linked
	for _, m := range all {
		var err error
		if m.license, err = licenseOf(m.Dir); err != nil {
			return nil, fmt.Errorf("license of %s: %w", m.Path, err)
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b *linked) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// list returns the modules of packages and of all their dependencies, or nothing if there are no
// such packages.
func list(ctx context.Context, folder string, args ...string) ([]*linked, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-e", "-deps", "-json=Module"}, args...)...)
	cmd.Dir = folder
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	said, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the modules of %s: %w: %s", folder, err, &stderr)
	}
	var out []*linked
	for decoder := json.NewDecoder(bytes.NewReader(said)); ; {
		var p struct{ Module *linked }
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list the modules of %s: %w", folder, err)
		}
		if p.Module != nil {
			out = append(out, p.Module)
		}
	}
}

// age returns how old the version is.
func (m *linked) age(now time.Time) string {
	if m.Time == nil {
		return "age unknown"
	}
	return fmt.Sprintf("%d days", int(now.Sub(*m.Time).Hours()/24))
}

// use returns the purpose for which the module is linked.
func (m *linked) use() string {
	if m.shipped {
		return "the exporter"
	}
	return "tests and tools"
}

// permissive reports whether each of the licenses requires at most a notice. (The library does not
// classify licenses.)
func permissive(licenses string) bool {
	for id := range strings.FieldsSeq(licenses) {
		switch id {
		case "Apache-2.0", "MIT", "MIT-0", "ISC", "0BSD", "Unlicense", "CC0-1.0", "Zlib", "BSD-2-Clause", "BSD-3-Clause",
			"BSD-2-Clause-FreeBSD", "BSD-2-Clause-Views", "GooglePatentClause", "GooglePatentsFile", "LLVM-exception":
		default:
			return false
		}
	}
	return true
}

// licenseOf returns the licenses in the top folder of a module, as identifiers of SPDX, or unknown.
func licenseOf(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("read folder: %w", err)
	}
	var found []string
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if e.IsDir() || !strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", fmt.Errorf("read license: %w", err)
		}
		for _, match := range licensecheck.Scan(text).Match {
			if !match.IsURL && !slices.Contains(found, match.ID) {
				found = append(found, match.ID)
			}
		}
	}
	if len(found) == 0 {
		return "unknown", nil
	}
	slices.Sort(found)
	return strings.Join(found, " "), nil
}
