package kube

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// withStatus returns a claim of device x, and of share s of it, with these statuses.
func withStatus(statuses ...string) string {
	share := device[:len(device)-1] + `,"shareID":"s"}`
	return strings.Replace(claimOf("c", exact, stamp, device+","+share), `"status":{`,
		`"status":{"devices":[`+strings.Join(statuses, ",")+`],`, 1)
}

// A status of an allocated device (KEP-4817) applies only to that device or share.
func TestDeviceStatus(t *testing.T) {
	const of = `{"driver":"d.test","pool":"p","device":"x",`
	network := of +
		`"networkData":{"interfaceName":"net1","ips":["10.0.0.2/24","fd00::2/64","10.0.0.2/24"],` +
		`"hardwareAddress":"02:00:00:00:00:01"}}`
	ready := podresources.Condition{Type: "Ready", Status: "True"}
	for name, tc := range map[string]struct {
		statuses   []string
		conditions [2][]podresources.Condition // of the device, and of its share
		network    *podresources.Network       // of the device
	}{
		"none": {},
		"conditions, sorted, each once": {
			statuses: []string{of +
				`"conditions":[{"type":"Ready","status":"True","reason":"x"},{"type":"Linked","status":"Unknown"},` +
				`{"type":"Ready","status":"False"}]}`},
			conditions: [2][]podresources.Condition{{{Type: "Linked", Status: "Unknown"}, ready}},
		},
		"of a share": {
			statuses:   []string{of + `"shareID":"s","conditions":[{"type":"Ready","status":"True"}]}`},
			conditions: [2][]podresources.Condition{1: {ready}},
		},
		"network": {
			statuses: []string{network},
			network: &podresources.Network{
				Interface: "net1", IPs: []string{"10.0.0.2/24", "fd00::2/64"},
				HardwareAddress: "02:00:00:00:00:01",
			},
		},
		"of no device of the claim": {statuses: []string{strings.Replace(network, `"x"`, `"y"`, 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			got, rejected, err := ParseClaims([]byte(withStatus(tc.statuses...)))
			must.Do(t, err)
			id := driver.ID{Driver: "d.test", Pool: "p", Device: "x"}
			want := []podresources.ClaimResult{
				{Device: id, Request: "r", DeviceClass: "class", Conditions: tc.conditions[0], Network: tc.network},
				{Device: id, ShareID: "s", Request: "r", DeviceClass: "class", Conditions: tc.conditions[1]},
			}
			expect.Equal(t, "", want, got[podresources.Claim{Namespace: "ns", Name: "c"}].Results)
			expect.Equal(t, "rejections", driver.Rejections{}, rejected)
		})
	}
}

// Malformed elements of API objects are omitted alone, and counted.
func TestRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Slices, sliceJSON("good", onNode1, "a"))
		c.Put(kubetest.Slices, []byte(`{"metadata":{"name":"bad"},"spec":{"nodeName":"node1","pool":7}}`))
		c.Put(kubetest.Claims, claimJSON("good", "a"))
		c.Put(kubetest.Claims, []byte(`{"metadata":{"namespace":"ns","name":"bad"},"status":7}`))
		c.Put(kubetest.Pods, podJSON("good", "node1", "Running"))
		c.Put(kubetest.Pods,
			[]byte(`{"metadata":{"namespace":"ns","name":"bad"},"spec":{"nodeName":"node1","containers":7}}`))
		c.want(allocation("good", "a", "good"), allocation("bad", "b", "bad"))
		c.follow(t)
		time.Sleep(time.Second)
		c.wantDevices(t, "p/a")
		expect.That(t, len(c.book.bound()) == 1 && len(c.book.known()) == 1,
			"pods %v, claims %v", c.book.bound(), c.book.known())
		got := map[string]driver.Rejections{}
		for _, source := range []string{SourceSlices, SourceClaims, SourcePods} {
			got[source] = c.node.Rejected(source)
		}
		expect.Equal(t, "", map[string]driver.Rejections{
			SourceSlices: {"malformed_slice": 1}, SourceClaims: {driver.ReasonMalformedClaim: 1},
			SourcePods: {"malformed_pod": 1},
		}, got)
	})
}
