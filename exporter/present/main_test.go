package present

import (
	"testing"

	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestMain(m *testing.M) { testmain.Main(m) }
