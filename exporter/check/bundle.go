package check

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/web"
)

// WriteBundle writes a gzipped tar archive for a bug report: the report as text and JSON, the
// settings, and the snapshot of one tick. It contains names of pods, claims and devices, and no
// secrets: it omits the files that flags name, and masks passwords in addresses.
func WriteBundle(w io.Writer, r *Report, in join.Input, settings map[string]string) error {
	var text bytes.Buffer
	if err := r.WriteText(&text, true, func(s string) string { return s }); err != nil {
		return err
	}
	masked := make(map[string]string, len(settings))
	for name, value := range settings {
		masked[name] = mask(value)
	}
	books := ledger.New(ledger.Config{Retention: time.Minute})
	snapshot := exposition.NewLimiter(0, nil).Apply(books, books.Advance(join.Join(in), in.View.At))
	var report bytes.Buffer
	if err := web.WriteReport(&report, snapshot, r.Node, time.Minute); err != nil {
		return err
	}
	zipped := gzip.NewWriter(w)
	archive := tar.NewWriter(zipped)
	for _, file := range []struct {
		name    string
		content any
	}{
		{"check.txt", mask(text.String())},
		{"check.json", r},
		{"settings.json", masked},
		{"snapshot.json", json.RawMessage(report.Bytes())},
	} {
		if err := addFile(archive, file.name, file.content, r.Time); err != nil {
			return fmt.Errorf("add %s to the bundle: %w", file.name, err)
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("end the bundle: %w", err)
	}
	return zipped.Close()
}

func addFile(archive *tar.Writer, name string, content any, at time.Time) error {
	data, isText := content.(string)
	if !isText {
		encoded, err := json.MarshalIndent(content, "", "  ")
		if err != nil {
			return err
		}
		data = mask(string(encoded))
	}
	header := tar.Header{Name: "dra-exporter-check/" + name, Mode: 0o644, Size: int64(len(data)), ModTime: at}
	if err := archive.WriteHeader(&header); err != nil {
		return err
	}
	_, err := io.WriteString(archive, data)
	return err
}

// mask replaces the user information of addresses.
func mask(s string) string {
	return regexp.MustCompile(`(\w+://)[^/\s"@]+@`).ReplaceAllString(s, "${1}***@")
}
