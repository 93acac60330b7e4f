// Package page opens the exporter's page in headless Chromium: on a large node, on the demo's node
// on a narrow screen, without JavaScript, and a hostile node's one through the gateway.
//
// $DRA_EXPORTER is the path of the program; chromium is Debian's.
package page

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
