package kube

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
)

func classicClaim(status string) []byte {
	return fmt.Appendf(nil,
		`{"apiVersion":"resource.k8s.io/v1alpha2","kind":"ResourceClaim","metadata":{"name":"c","namespace":"ns","uid":"u"},
		"spec":{"resourceClassName":"nics","allocationMode":"WaitForFirstConsumer"},"status":%s}`, status)
}

func TestParseClassicClaims(t *testing.T) {
	instance := func(driverName string) podresources.ClaimResult {
		return podresources.ClaimResult{
			Device:      driver.ID{Driver: driverName, Pool: "node1", Device: "gpu-0"},
			DeviceClass: "nics",
		}
	}
	const structured = `"structuredData":{"nodeName":"node1","results":[{"namedResources":{"name":"gpu-0"}}]}`
	for name, tc := range map[string]struct {
		status  string
		driver  string
		results []podresources.ClaimResult
		reason  driver.Reason
	}{
		"not allocated": {`{}`, "", nil, ""},
		"allocated": {
			`{"driverName":"d.test","allocation":{"resourceHandles":[{"driverName":"d.test","data":"x"}]}}`,
			"d.test", nil, "",
		},
		"no handle": {`{"driverName":"d.test","allocation":{}}`, "d.test", nil, ""},
		"two drivers": {
			`{"driverName":"d.test","allocation":{"resourceHandles":[{"driverName":"d.test"},{"driverName":"e.test"}]}}`,
			"", nil, "",
		},
		"of a slice": {
			`{"driverName":"d.test","allocation":{"resourceHandles":[{"driverName":"d.test",` + structured +
				`}]}}`,
			"d.test",
			[]podresources.ClaimResult{instance("d.test")},
			"",
		},
		"handle's driver": {
			`{"driverName":"d.test","allocation":{"resourceHandles":[{` + structured + `}]}}`, "d.test",
			[]podresources.ClaimResult{instance("d.test")},
			"",
		},
		"handle": {
			`{"driverName":"d.test","allocation":{"resourceHandles":[7,{"driverName":"d.test"}]}}`, "d.test", nil,
			driver.ReasonMalformedResult,
		},
		"instance": {
			`{"driverName":"d.test","allocation":{"resourceHandles":[{"structuredData":{"nodeName":"a ` +
				`b","results":[{"namedResources":{"name":"x"}}]}}]}}`,
			"d.test", nil, driver.ReasonMalformedResult,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, rejected, err := ParseClaims(classicClaim(tc.status))
			if err != nil {
				t.Fatal(err)
			}
			want := map[podresources.Claim]podresources.ClaimFacts{{Namespace: "ns", Name: "c"}: {
				UID: "u", Results: tc.results, Classic: &podresources.Classic{Class: "nics", Driver: tc.driver},
			}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if (tc.reason == "") != (len(rejected) == 0) || tc.reason != "" && rejected[tc.reason] == 0 {
				t.Errorf("rejected %v, want %q", rejected, tc.reason)
			}
		})
	}
}

// A cluster that serves only v1alpha2: slices of 1.30 are selected by another field, and claims are
// read; an upgrade is detected.
func TestClassicCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Serve("v1alpha2")
		c.Put(kubetest.Slices,
			[]byte(`{"apiVersion":"resource.k8s.io/v1alpha2","kind":"ResourceSlice","metadata":{"name":"s"},"nodeName":"node1",
			"driverName":"d.test","namedResources":{"instances":[{"name":"gpu-0"}]}}`))
		c.Put(kubetest.Slices,
			[]byte(`{"apiVersion":"resource.k8s.io/v1alpha2","kind":"ResourceSlice","metadata":{"name":"other"},
			"nodeName":"node2",
			"driverName":"d.test","namedResources":{"instances":[{"name":"gpu-9"}]}}`))
		c.Put(kubetest.Claims,
			classicClaim(`{"driverName":"d.test","allocation":{"resourceHandles":[{"driverName":"d.test"}]}}`))
		c.follow(t)
		held := podresources.Allocation{
			Claim: podresources.Claim{Namespace: "ns", Name: "c"}, Device: driver.ID{Driver: "d.test", Device: "u"},
			Holders: []podresources.Holder{{Pod: podresources.Pod{Namespace: "ns", Name: "p"}}},
		}
		c.want(held)
		c.node.Wait(t.Context())
		c.wantDevices(t, "node1/gpu-0")
		if got := c.book.known()[held.Claim].Classic; got == nil || got.Class != "nics" {
			t.Errorf("the claim says %+v", got)
		}
		for range 60 {
			time.Sleep(time.Second)
			c.want(held)
		}
		if got := c.Usage().Gets; got > 4 {
			t.Errorf("%d gets in a minute of a claim that says all it can", got)
		}
		for _, source := range []string{SourceSlices, SourceClaims} {
			if got := c.state(source); got != "up" {
				t.Errorf("%s: %s", source, got)
			}
		}
		c.Delete(kubetest.Slices, "", "s")
		c.Put(kubetest.Slices, sliceJSON("s", onNode1, "gpu-0"))
		c.Serve("v1beta1")
		time.Sleep(12 * time.Minute)
		c.wantDevices(t, "p/gpu-0")
	})
}
