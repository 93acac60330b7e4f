// Package faketest builds fakes of vendors' C libraries from C sources of this repository. Fake and
// test share a file of state, with which the test controls the fake. It is for driver/nvml/nvmltest
// and driver/dcgm/dcgmtest.
package faketest

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"unsafe"
)

// Fake has the sources of a fake.
type Fake struct {
	// Sources has the folder fake with fake.c and functions.h, which lists the library's functions as
	// FUNCTION(name).
	Sources fs.FS
	// Headers is the Go package whose folder contains the vendor's headers.
	Headers string
}

// Write writes the sources into a folder, and returns the numbers of the functions in their list.
func (f Fake) Write(dir string) (Functions, error) {
	if err := os.CopyFS(dir, f.Sources); err != nil {
		return nil, fmt.Errorf("write the fake's sources: %w", err)
	}
	list, err := fs.ReadFile(f.Sources, "fake/functions.h")
	if err != nil {
		return nil, fmt.Errorf("list the fake's functions: %w", err)
	}
	functions := Functions{}
	for i, match := range regexp.MustCompile(`(?m)^FUNCTION\((\w+)\)`).FindAllSubmatch(list, -1) {
		functions[string(match[1])] = i
	}
	return functions, nil
}

// Compile builds libraries at the given paths from the sources in a folder, each with its own
// flags. STATE_PATH is the file state in the folder.
func (f Fake) Compile(ctx context.Context, dir string, libraries map[string][]string) error {
	headers, err := folderOf(ctx, f.Headers)
	if err != nil {
		return fmt.Errorf("find the headers of %s: %w", f.Headers, err)
	}
	for library, flags := range libraries {
		args := append([]string{"-shared", "-fPIC", "-O1", "-Wno-deprecated-declarations"}, flags...)
		args = append(args, "-DSTATE_PATH=\""+filepath.Join(dir, "state")+"\"", "-I"+headers, "-o", library,
			filepath.Join(dir, "fake", "fake.c"), "-lm")
		if out, err := exec.CommandContext(ctx, "cc", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("compile the fake: %w\n%s", err, out)
		}
	}
	return nil
}

// folderOf returns the folder of a Go package, which may be in another module than the caller's.
func folderOf(ctx context.Context, pkg string) (string, error) {
	module, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/dra-exporter/dra-exporter").Output()
	if err != nil {
		return "", err
	}
	folder, err := exec.CommandContext(ctx, "go", "list", "-C", strings.TrimSpace(string(module)), "-f", "{{.Dir}}",
		pkg).Output()
	return strings.TrimSpace(string(folder)), err
}

// Map creates the file state in a folder with a size, and maps it until the process ends. The Go
// type of the pointer mirrors a C struct: both have only fields of 8 bytes and arrays of bytes,
// which neither compiler pads.
func Map(dir string, size uintptr) (unsafe.Pointer, error) {
	file, err := os.OpenFile(filepath.Join(dir, "state"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make the fake's state: %w", err)
	}
	defer file.Close()
	if err := file.Truncate(int64(size)); err != nil {
		return nil, fmt.Errorf("make the fake's state: %w", err)
	}
	memory, err := syscall.Mmap(int(file.Fd()), 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the fake's state: %w", err)
	}
	return unsafe.Pointer(&memory[0]), nil
}

// Functions are the numbers of a fake's functions.
type Functions map[string]int

// Number returns the number of a function. It panics for a function that the fake lacks.
func (f Functions) Number(name string) int {
	i, ok := f[name]
	if !ok {
		panic("the fake has no " + name)
	}
	return i
}
