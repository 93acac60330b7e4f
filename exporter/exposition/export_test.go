package exposition

import (
	"github.com/prometheus/common/expfmt"
)

// Formats is for the tests of the package exposition_test.
func Formats() []expfmt.Format { return formats() }
