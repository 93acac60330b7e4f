package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// BenchmarkNoHardware samples each source that is on by default, on a node without any of their
// hardware: the cost of a tick on such a node.
func BenchmarkNoHardware(b *testing.B) {
	for _, listed := range sources() {
		if listed.Addressed {
			continue
		}
		b.Run(listed.Name, func(b *testing.B) {
			root := b.TempDir()
			source, err := listed.New(driver.Host{
				Procfs: root, Sysfs: root, KubeletRoot: root, Passthrough: func() bool { return false },
				CountListed: func(string) int { return 0 }, Attachments: func() []driver.Attachment { return nil },
			})
			if err != nil && !errors.Is(err, driver.ErrNotBuilt) {
				b.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				samples, err := source.Sample(ctx)
				if len(samples) > 0 || err != nil && !errors.Is(err, driver.ErrAbsent) {
					b.Fatalf("%d samples, error %v", len(samples), err)
				}
			}
		})
	}
}
