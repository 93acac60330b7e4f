package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestRecorded(t *testing.T) {
	got, rejected, err := ParseClaims(readTestdata(t))
	must.That(t, err == nil && len(rejected) == 0, "rejected %v, error %v", rejected, err)
	gpu := func(name string) driver.ID {
		return driver.ID{Driver: "gpu.example.com", Pool: "node1", Device: name}
	}
	memory := func(gib float64) []driver.Amount {
		return []driver.Amount{{Resource: "memory", Value: gib * (1 << 30)}}
	}
	shared := func(request, share string, gib float64) podresources.ClaimResult {
		return podresources.ClaimResult{
			Device: gpu("shared-0"), ShareID: share, Request: request, DeviceClass: "shared.example.com", Consumed: memory(gib),
		}
	}
	single := func(device, request, class string) []podresources.ClaimResult {
		return []podresources.ClaimResult{{Device: gpu(device), Request: request, DeviceClass: class}}
	}
	var all []podresources.ClaimResult
	for i := range 8 {
		all = append(all, podresources.ClaimResult{
			Device: gpu(fmt.Sprint("gpu-", i)), Request: "all", DeviceClass: "gpu.example.com", Admin: true,
		})
	}
	early := time.Date(2026, 11, 21, 1, 59, 17, 0, time.UTC)
	late := early.Add(4 * time.Second)
	want := map[podresources.Claim]podresources.ClaimFacts{
		{Namespace: "monitoring", Name: "exporter-gpus-jn427"}: {
			Reserved: map[string]string{"f453a9c7-0dad-4a2f-b8b7-a20abedda1b9": "exporter"},
			UID:      "a39c77ee-238e-430d-872d-6fe4ac32a48a", Created: early, AllocatedAt: early,
			PodClaimName: "gpus", Results: all,
		},
		{Namespace: "team-b", Name: "cc-3-gpu-p969z"}: {
			Reserved: map[string]string{"573a64c1-f51c-4e6a-9274-1b5d316973a3": "cc-3"},
			UID:      "21d86684-5793-4ac3-9adc-e5479cb126bb", Created: late, AllocatedAt: late, PodClaimName: "gpu",
			Results: []podresources.ClaimResult{
				shared("a", "cb70e6eb-e349-46b9-a283-765b72304de1", 20), shared("b", "ad61afc3-4b7b-4b4d-b6ad-e44d9f9d39d6", 10),
			},
		},
		{Namespace: "team-b", Name: "extended-extended-resources-jbpk2"}: {
			Extended: true, Reserved: map[string]string{"f7487c28-ed24-4fd9-bb1e-655251a22c4b": "extended"},
			UID: "c7b8da7d-7acc-4be6-8036-d54cac988877", Created: late, AllocatedAt: late,
			Results: single("gpu-1", "container-0-request-0", "ext.example.com"),
		},
		{Namespace: "team-b", Name: "shared-claim"}: {
			Reserved: map[string]string{
				"1d1908c7-1a65-46c5-a02c-88cb6c2b287b": "share-1",
				"0a30babd-e84c-4ee2-adb3-f2ddd0ad882b": "share-2",
			},
			UID: "4724f954-3f7f-4de9-9a53-ad4c0b7a046e", Created: early, AllocatedAt: early,
			Results: single("gpu-4", "gpu", "gpu.example.com"),
		},
	}
	expect.Is(t, len(got), 7, "claims")
	for claim, facts := range want {
		expect.Equal(t, claim.Name, facts, got[claim])
	}
}

// TestVersions checks that v1beta2 and v1beta1, which does not nest the class in exactly, give the
// same facts as v1.
func TestVersions(t *testing.T) {
	want, _, err := ParseClaims(readTestdata(t))
	must.Do(t, err)
	for _, version := range []string{"v1beta2", "v1beta1", "v1alpha3"} {
		t.Run(version, func(t *testing.T) {
			var list map[string]any
			must.Do(t, yaml.Unmarshal(readTestdata(t), &list))
			for _, item := range list["items"].([]any) {
				object := item.(map[string]any)
				object["apiVersion"] = "resource.k8s.io/" + version
				if version == "v1beta1" || version == "v1alpha3" {
					flattenRequests(object)
				}
			}
			data, err := json.Marshal(list)
			must.Do(t, err)
			got, rejected, err := ParseClaims(data)
			must.That(t, err == nil && len(rejected) == 0, "rejected %v, error %v", rejected, err)
			expect.Equal(t, "", want, got)
		})
	}
}

// flattenRequests writes a v1 claim's requests as v1beta1 does.
func flattenRequests(object map[string]any) {
	for _, r := range object["spec"].(map[string]any)["devices"].(map[string]any)["requests"].([]any) {
		request := r.(map[string]any)
		maps.Copy(request, request["exactly"].(map[string]any))
		delete(request, "exactly")
	}
}

// claimOf returns a v1 claim with these requests, allocation timestamp and results, in JSON.
func claimOf(name, requests, timestamp, results string) string {
	return fmt.Sprintf(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim",
		"metadata":{"name":%q,"namespace":"ns","uid":"u"},
		"spec":{"devices":{"requests":[%s]}},"status":{"allocation":{"allocationTimestamp":%s,"devices":{"results":[%s]}}}}`,
		name, requests, timestamp, results)
}

// reserved returns a claim with these consumers.
func reserved(consumers string) string {
	return strings.Replace(claimOf("c", exact, stamp, device), `"status":{`, `"status":{"reservedFor":[`+consumers+`],`, 1)
}

const (
	stamp  = `"2026-11-21T01:59:17Z"`
	exact  = `{"name":"r","exactly":{"deviceClassName":"class"}}`
	device = `{"driver":"d.test","pool":"p","device":"x","request":"r"}`
)

func TestParseClaims(t *testing.T) {
	id := driver.ID{Driver: "d.test", Pool: "p", Device: "x"}
	at := time.Date(2026, 11, 21, 1, 59, 17, 0, time.UTC)
	good := podresources.ClaimResult{Device: id, Request: "r", DeviceClass: "class"}
	classless := podresources.ClaimResult{Device: id, Request: "r"}
	with := func(results ...podresources.ClaimResult) *podresources.ClaimFacts {
		return &podresources.ClaimFacts{UID: "u", AllocatedAt: at, Results: results}
	}
	first := `{"name":"r","firstAvailable":[{"name":"big","deviceClassName":"c1"},` +
		`{"name":"small","deviceClassName":"c2"}]}`
	for name, tc := range map[string]struct {
		data   string
		want   *podresources.ClaimFacts
		reason driver.Reason
	}{
		"good": {claimOf("c", exact, stamp, device), with(good), ""},
		"subrequest": {
			claimOf("c", first, stamp, strings.Replace(device, `"r"`, `"r/small"`, 1)),
			with(podresources.ClaimResult{Device: id, Request: "r/small", DeviceClass: "c2"}), "",
		},
		"capacity's name": {
			claimOf("c", exact, stamp,
				device[:len(device)-1]+`,"consumedCapacity":{"d.test/memory":"1Gi","cores":5}}`),
			with(podresources.ClaimResult{
				Device: id, Request: "r", DeviceClass: "class",
				Consumed: []driver.Amount{{Resource: "cores", Value: 5}, {Resource: "memory", Value: 1 << 30}},
			}),
			"",
		},
		"offset": {claimOf("c", exact, `"2026-11-21T02:59:17+01:00"`, device), with(good), ""},
		"no timestamp": {
			claimOf("c", exact, "null", device),
			&podresources.ClaimFacts{UID: "u", Results: []podresources.ClaimResult{good}}, "",
		},
		"not allocated": {
			`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"c","namespace":"ns","uid":"u"}}`,
			&podresources.ClaimFacts{UID: "u"}, "",
		},
		"unknown request": {claimOf("c", "", stamp, device), with(classless), ""},
		"tolerations": {
			claimOf("c", exact, stamp,
				device[:len(device)-1]+
					`,"tolerations":[{"key":"k","operator":"Equal","value":"v","effect":"NoExecute"},`+
					`{"key":"k","operator":"Exists"},{"operator":"Exists"}]}`),
			with(podresources.ClaimResult{
				Device: id, Request: "r", DeviceClass: "class",
				Tolerations: []string{"k=v:NoExecute", "k", ""},
			}),
			"",
		},
		"reserved": {
			reserved(`{"resource":"pods","name":"p","uid":"1"},{"resource":"pods","name":"q","uid":"2"},` +
				`{"apiGroup":"x","resource":"pods","name":"r","uid":"3"},{"resource":"jobs","name":"s","uid":"4"}`),
			&podresources.ClaimFacts{
				UID: "u", AllocatedAt: at, Results: []podresources.ClaimResult{good},
				Reserved: map[string]string{"1": "p", "2": "q"}, ReservedOther: true,
			}, "",
		},
		"negative capacity": {
			claimOf("c", exact, stamp, device[:len(device)-1]+`,"consumedCapacity":{"m":"-1"}}`),
			with(good), driver.ReasonMalformedCapacity,
		},
		"capacity": {
			claimOf("c", exact, stamp, device[:len(device)-1]+`,"consumedCapacity":{"m":"NaN"}}`),
			nil, driver.ReasonMalformedClaim,
		},
		"name":      {claimOf("a\"b", exact, stamp, device), nil, driver.ReasonMalformedClaim},
		"long name": {claimOf(strings.Repeat("x", 254), exact, stamp, device), nil, driver.ReasonMalformedClaim},
		"timestamp": {claimOf("c", exact, `"yesterday"`, device), nil, driver.ReasonMalformedClaim},
		"request":   {claimOf("c", `7`, stamp, device), nil, driver.ReasonMalformedClaim},
		"result":    {claimOf("c", exact, stamp, `7,`+device), nil, driver.ReasonMalformedClaim},
		"claim's type": {
			`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":7}`, nil,
			driver.ReasonMalformedClaim,
		},
		"no object": {`{"apiVersion":"v1","kind":"List","items":[7]}`, nil, driver.ReasonMalformedObject},
		"duplicate": {
			claimOf("c", exact, stamp, device) + claimOf("c", exact, stamp, ""), with(good),
			driver.ReasonDuplicateClaim,
		},
		"other kind": {`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice"}`, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, rejected, err := ParseClaims([]byte(tc.data))
			must.Do(t, err)
			wantRejected := driver.Rejections{}
			if tc.reason != "" {
				wantRejected = driver.Rejections{tc.reason: 1}
			}
			expect.Equal(t, "rejections", wantRejected, rejected)
			want := map[podresources.Claim]podresources.ClaimFacts{}
			if tc.want != nil {
				want[podresources.Claim{Namespace: "ns", Name: "c"}] = *tc.want
			}
			expect.Equal(t, "", want, got)
		})
	}
}

func TestParseClaimsErrors(t *testing.T) {
	good := claimOf("c", exact, stamp, device)
	for name, tc := range map[string]struct{ data, want string }{
		"version": {
			good + "\n---\n" + strings.Replace(good, "/v1", "/v1alpha1", 1),
			"parse resource claims: document 2: ResourceClaim",
		},
		"syntax": {"a: [", "parse resource claims: document 1: error"},
	} {
		if got, _, err := ParseClaims([]byte(tc.data)); err == nil || got != nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", name, err, tc.want)
		}
	}
}

func FuzzParseClaims(f *testing.F) {
	f.Add(readTestdata(f))
	f.Add([]byte(claimOf("c", exact, stamp, device)))
	f.Add([]byte(claimOf("c", `{"name":"r","deviceClassName":"x","firstAvailable":[{"name":"s"}]}`, `"x"`, device)))
	// The API server's quantities are canonical: no power of ten that takes hours to read.
	slow := regexp.MustCompile(`[eE][+-]?\d{4}`)
	f.Fuzz(func(t *testing.T, data []byte) {
		if slow.Match(data) {
			return
		}
		got, rejected, err := ParseClaims(data)
		must.That(t, err == nil || got == nil && rejected == nil, "an error and a result")
		for claim, facts := range got {
			must.That(t, claim.Name != "" && claim.Namespace != "", "claim %+v", claim)
			for _, r := range facts.Results {
				for _, a := range r.Consumed {
					must.That(t, a.Value >= 0 && !math.IsNaN(a.Value) && !math.IsInf(a.Value, 0), "consumed %+v", a)
				}
			}
		}
	})
}

func readTestdata(tb testing.TB) []byte {
	tb.Helper()
	data := must.Get(os.ReadFile("testdata/resourceclaims.yaml"))(tb)
	return data
}

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
		expect.Equal(t, "", map[string]driver.Rejections{
			SourceSlices: {"malformed_slice": 1}, SourceClaims: {driver.ReasonMalformedClaim: 1},
			SourcePods: {"malformed_pod": 1},
		}, c.rejected)
	})
}

// A pod object either is counted as rejected or has a name, facts within their bounds, and labels
// that can be exported.
func FuzzPod(f *testing.F) {
	f.Add([]byte(`{"metadata":{"namespace":"n","name":"p","uid":"6d2f2b2e-0000-4000-8000-000000000001",
		"labels":{"app":"a"},"annotations":{"team":"\u0001"},
		"ownerReferences":[{"apiVersion":"v1","kind":"Job","name":"j","uid":"u","controller":true}]},
		"spec":{"nodeName":"node1","resourceClaims":[{"name":"gpu","resourceClaimTemplateName":"t"}],
		"containers":[{"name":"main","resources":{"claims":[{"name":"gpu","request":"r"}],
		"requests":{"example.com/gpu":"1"}}}]},
		"status":{"phase":"Running","resourceClaimStatuses":[{"name":"gpu","resourceClaimName":"p-gpu-x"}],
		"extendedResourceClaimStatus":{"resourceClaimName":"e","requestMappings":[
		{"containerName":"main","requestName":"r","resourceName":"example.com/gpu"}]},
		"containerStatuses":[{"name":"main","restartCount":1,"state":{"running":{}},
		"allocatedResourcesStatus":[{"name":"claim:gpu","resources":[{"resourceID":"d/p/g","health":"Unhealthy"}]}]}]}}`))
	f.Add([]byte(`{"metadata":{"namespace":"n","name":"p","uid":"1d2f2b2e000040008000000000000001",
		"annotations":{"kubernetes.io/config.source":"file"}},"status":{"phase":"Failed"}}`))
	f.Add([]byte(`{"metadata":{"namespace":"n","name":"p","uid":"../.."}}`))
	selection := &podresources.Selection{
		PodLabels: []podresources.Chosen{{Key: "app", Name: "app"}}, PodAnnotations: []podresources.Chosen{
			{Key: "team", Name: "team"},
		},
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var reasons []driver.Reason
		sink := newBook()
		feed := podFeed{podresources.PodReader{
			Sink: sink, Selection: selection,
			Reject: func(r driver.Rejections) { reasons = slices.AppendSeq(reasons, maps.Keys(r)) }, Now: time.Now,
		}}
		feed.update(data, false)
		ok := len(sink.pods) == 1
		must.That(t, ok == (len(reasons) == 0) && len(reasons) <= 1, "used: %v, rejected for %q", ok, reasons)
		if !ok {
			return
		}
		facts := slices.Collect(maps.Values(sink.pods))[0]
		texts := append([]string{facts.Pod.Namespace, facts.Pod.Name, facts.UID}, facts.Meta.Labels...)
		for i, text := range append(texts, facts.Meta.OwnerKind, facts.Meta.OwnerName) {
			must.That(t, (i >= 3 || text != "") && len(text) <= 512 && utf8.ValidString(text), "text %q of %q", text, texts)
		}
		if len(facts.Meta.Labels) != 4 || strings.ContainsAny(facts.UID, "/.") || len(facts.Claims) > 256 ||
			facts.Running < 0 || facts.Running > 0 && !facts.Started {
			t.Fatalf("facts %+v", facts)
		}
	})
}
