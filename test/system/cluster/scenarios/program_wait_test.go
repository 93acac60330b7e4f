package scenarios

import (
	"errors"
	"testing"
)

// endedError is a cluster that has ended for this reason.
type endedError struct{ error }

func (c endedError) EndedUnasked() error { return c.error }

// A test and its subtests learn that their cluster has ended; other tests do not.
func TestEndedCluster(t *testing.T) {
	want := errors.New("etcd ended")
	clusters.Store(t.Name(), endedError{want})
	defer clusters.Delete(t.Name())
	for test, want := range map[string]error{
		t.Name(): want, t.Name() + "/Claims/Single": want, t.Name() + "2/Claims": nil, "Test": nil,
	} {
		if got := endedUnasked(test); !errors.Is(got, want) {
			t.Errorf("%s: %v, want %v", test, got, want)
		}
	}
}
