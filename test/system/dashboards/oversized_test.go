package dashboards

import "slices"

// oversizedStories are about claims for which half of what they hold suffices.
func oversizedStories() []story {
	fit := func(unused course) series {
		return series{
			"dra_claim_fit_unused_ratio", claimLabels("a", "c", "gpu-0") + `, alternative="2g.20gb"`, unused,
		}
	}
	const oversized = "DRAClaimOversized namespace=a resourceclaim_name=c device=gpu-0"
	busy := func() []series { return alone("a", "c", "gpu-0", rising(30), nil) }
	return []story{
		{
			name: "a quarter suffices, until a peak", series: slices.Concat(busy(), []series{fit(always(0.75).between(0, 60))}),
			checks: []check{{20, []string{oversized}}, {80, nil}},
		},
		{
			name: "more than half is needed", series: slices.Concat(busy(), []series{fit(always(0.4))}),
			checks: []check{{20, nil}, {80, nil}},
		},
	}
}
