package present

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A namespace has what its claims hold and what its pods hold by device plugins. A device that both
// hold counts once.
func TestNamespaceHolders(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.In.Inventory[jointest.ID("gpu-1")] = driver.Entry{Hardware: driver.Hardware{UUID: "gpu-1"}}
	h.Read(jointest.Watts(70))
	h.ReadOf("gpu-1", jointest.Watts(30))
	h.In.View.Allocations = []podresources.Allocation{
		jointest.Allocation("gpu-0", "c", "p"), jointest.Allocation("gpu-0", "", "plugged"),
		jointest.Allocation("gpu-1", "", "plugged"),
	}
	h.Pass(time.Second)
	var written bytes.Buffer
	var r Report
	must.Do(t, errors.Join(WriteReport(&written, h.Last, Config{Node: "node-1", QuietAfter: time.Minute}),
		json.Unmarshal(written.Bytes(), &r)))
	got := NamespaceHolders(slices.Concat(ClaimHolders(&r, ""), UnclaimedHolders(&r, "")))
	must.That(t, len(got) == 1 && got[0].Power != nil, "got %+v, want one namespace with a power", got)
	if power := *got[0].Power; power != 100 {
		t.Errorf("its power is %v W, want 100", power)
	}
	for _, tc := range []struct{ got, want []string }{
		{got[0].DeviceNames(), []string{"gpu-0", "gpu-1"}},
		{got[0].Claims, []string{"team/c"}},
		{got[0].Pods, []string{"team/p", "team/plugged"}},
	} {
		expect.Equal(t, "", tc.want, tc.got)
	}
}
