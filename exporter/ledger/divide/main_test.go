package divide_test

import (
	"testing"

	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
)

func TestMain(m *testing.M) { exportertest.Main(m) }
