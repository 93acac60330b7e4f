package join

import "testing"

// The text of an origin has all that is known of it.
func TestOrigin(t *testing.T) {
	for computed := range 2 * DividedByShare {
		want := Origin{"nvml", computed}
		if got := ParseOrigin(want.String()); got != want {
			t.Errorf("%v is read as %v", want, got)
		}
	}
	if got := (Origin{"drm", Estimated | Divided}).String(); got != "drm (estimate) (divided)" {
		t.Errorf("got %q", got)
	}
}
