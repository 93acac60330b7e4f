package grafana

import (
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// eachHolder has a series with the label holder for each claim that holds a device, and for each
// pod that holds one without a claim.
func eachHolder(of string) string {
	return `group by (<device>, holder) (
		  label_join(
		    dra_claim_device_info{` + of + `, admin_access="false"}, "holder", "/", "namespace", "resourceclaim_name"
		  )
		  or label_join(pod_device:dra_unclaimed:info{` + of + `}, "holder", "/", "namespace", "pod")
		)`
}

// holders has one series for each device that is held: its holder, or how many share it.
func holders(of string) string {
	shared := eachHolder(of + `, attribution!="exclusive"`)
	return eachHolder(of+`, attribution="exclusive"`) + `
		or on (<device>) label_replace(
		  count_values by (<device>) ("holder", count by (<device>) (` + shared + `) > 1),
		  "holder", "$1 holders", "holder", "(.+)"
		)
		or on (<device>) ` + shared
}

// heldOverTime is a timeline of who held each device, in line with the graphs above it. A row has
// the name of the device, or the beginning of its UUID, and of its node if there are several.
func heldOverTime(of, only string) Panel {
	held := `((` + holders(of) + `
		or on (<device>) label_replace(
		  group by (<device>) (dra_device_allocations{` + of + `}) unless on (<device>) ` + eachHolder(of) + `,
		  "holder", "free", "node", ".*"
		))` + only + `)`
	oneNode := `on () count(group by (<node>) (` + held + `)) == 1`
	return Panel{
		Title: "Who held the devices", Description: "The claim that held each device, without admin access, or the pod " +
			"that a device plugin gave it to, or how many shared it. Nothing is shown while the device was unknown.",
		Kind: Timeline, NoData: "no device was known", Width: 24, Height: 7, aligned: true,
		Targets: []Target{{
			Expr: `label_replace(
				label_join(` + held + ` and ` + oneNode + `, "held", " ", "device")
				or label_join(` + held + ` unless ` + oneNode + `, "held", " ", "node", "device"),
				"held", "$1", "held", "(.*(?:GPU|MIG)-[0-9a-f]{8})-.*")`,
			Legend: "{{holder}} {{node}}",
		}},
		reshape: []dashboard.DataTransformerConfig{
			transformed("labelsToFields", map[string]any{"mode": "columns", "keepLabels": []string{"held", "holder"}}),
			transformed("merge", map[string]any{}), sorted("Time"),
			transformed("groupingToMatrix", map[string]any{
				"columnField": "held", "rowField": "Time", "valueField": "holder", "emptyValue": "null",
			}),
		},
		fields: []dashboard.DashboardFieldConfigSourceOverrides{{
			Matcher:    dashboard.MatcherConfig{Id: "byRegexp", Options: "/.*/"},
			Properties: []dashboard.DynamicConfigValue{{Id: "mappings", Value: holderColors()}},
		}},
	}
}

// holderColors give holders colors by the first letter of the claim and by whether its last digit
// is odd, so that those which follow each other on a device mostly differ.
func holderColors() []map[string]any {
	free := map[string]any{"color": "transparent", "index": 0}
	out := []map[string]any{{"type": "value", "options": map[string]any{"free": free}}}
	color := func(pattern, color string) {
		out = append(out, map[string]any{"type": "regex", "options": map[string]any{
			"pattern": "/" + pattern + "/", "result": map[string]any{"color": color, "index": len(out)},
		}})
	}
	color(`^[0-9]+ holders$`, grey)
	for _, of := range [][3]string{
		{"a-h", blue, "dark-blue"}, {"i-p", green, "dark-green"}, {"q-z0-9", purple, "dark-purple"},
	} {
		color(`^[^/]*/[`+of[0]+`].*[13579][^0-9]*$`, of[2])
		color(`^[^/]*/[`+of[0]+`]`, of[1])
	}
	return out
}
