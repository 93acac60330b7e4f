package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The go.mod of this module, which links licensecheck.
func TestOwn(t *testing.T) {
	var out bytes.Buffer
	now := time.Date(2026, time.November, 22, 0, 0, 0, 0, time.UTC)
	if err := run(t.Context(), []string{".."}, &out, now); err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(
		`(?m)^github\.com/google/licensecheck +v0\.3\.1 +2270 days +BSD-3-Clause +tests and tools$`,
	)
	strict := regexp.MustCompile(
		`(?m)^github\.com/cyphar/filepath-securejoin v\S+: BSD-3-Clause MPL-2\.0, for tests and tools$`,
	)
	if !row.Match(out.Bytes()) || !strict.Match(out.Bytes()) || !strings.Contains(out.String(), "== ../go.mod: ") {
		t.Errorf("%s", &out)
	}
}

func TestReport(t *testing.T) {
	of := func(name string, shipped bool) map[string]*linked {
		return map[string]*linked{"example.com/a v1.0.0": {license: name, shipped: shipped}}
	}
	var out bytes.Buffer
	if err := report(&out, of("MPL-2.0", false)); err != nil {
		t.Errorf("a tool's license is an error: %v", err)
	}
	if !strings.Contains(out.String(), "example.com/a v1.0.0: MPL-2.0, for tests and tools\n") {
		t.Errorf("%s", &out)
	}
	if err := report(&out, of("AGPL-3.0", true)); err == nil || !strings.Contains(err.Error(), "example.com/a v1.0.0") {
		t.Errorf("a license of what is shipped: error %v", err)
	}
}

func TestLicense(t *testing.T) {
	const (
		mit     = "MIT License\n\n" + mitText
		unknown = "unknown"
	)
	for _, test := range []struct {
		files map[string]string
		want  string
		free  bool
	}{
		{map[string]string{"LICENSE": mit}, "MIT", true},
		{map[string]string{"licence.md": mit}, "MIT", true},
		{map[string]string{"README": mit}, unknown, false},
		{map[string]string{"LICENSE": "All rights reserved.\n"}, unknown, false},
		{nil, unknown, false},
		{map[string]string{"LICENSE": mit, "COPYING": gplNotice}, "GPL-2.0-or-later MIT", false},
	} {
		dir := t.TempDir()
		for name, text := range test.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := licenseOf(dir); err != nil || got != test.want || permissive(got) != test.free {
			t.Errorf("%v: license %q, error %v, permissive %v", test.files, got, err, permissive(got))
		}
	}
}

// mitText is the text of the license without its title.
const mitText = `Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction, including without
limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software,
and to permit persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
`

// gplNotice is the notice in source files under the GPL.
const gplNotice = `This program is free software; you can redistribute it and/or modify it under the terms of the GNU
General Public License as published by the Free Software Foundation; either version 2 of the License, or (at your
option) any later version.
`
