package grafana

// clusterClaims are the panels of the claims of the whole cluster, also of claims without a node,
// from the metrics of kube-state-metrics.
func clusterClaims() []Panel {
	const (
		no    = "where kube-state-metrics has no metrics of claims"
		of    = `{cluster=~"$cluster", namespace=~"$namespace"}`
		named = `, "resourceclaim_name", "$1", "resourceclaim", "(.+)")`
		key   = "cluster, namespace, resourceclaim_name"
	)
	count := func(what string) string {
		return `sum by (<namespace>) (max by (<namespace>) (namespace:dra_` + what + `_claims:count` + of + `))`
	}
	return []Panel{
		{
			Title: "Claims by namespace",
			Description: "Claims that wait for devices (pending), that have devices (allocated), and of these the ones that " +
				"no pod may use (unreserved).",
			Kind: Table, NoData: "kube-state-metrics has no metrics of claims", Width: 8, Height: 8, MayBeEmpty: no,
			sort: "Pending",
			Targets: []Target{
				{Expr: count("pending"), Column: "Pending", Unit: "none"},
				{Expr: count("allocated"), Column: "Allocated", Unit: "none"},
				{Expr: count("unreserved"), Column: "Unreserved", Unit: "none"},
			},
		},
		{
			Title: "Pending claims", Description: "The 20 claims that have waited the longest for devices.",
			Kind: Table, NoData: "no claim is pending, or kube-state-metrics has no metrics of claims", Width: 8, Height: 8,
			MayBeEmpty: no,
			Targets: []Target{{
				Expr: `bottomk(20, max by (` + key + `) (label_replace(kube_resourceclaim_created` + of + named + `)
					and on (` + key + `) (max by (` + key + `) (label_replace(kube_resourceclaim_status_allocated` + of + named +
					`) == 0)) * 1000`,
				Column: "Created", Unit: "dateTimeFromNow",
			}},
		},
		{
			Title: "Devices by namespace and driver",
			Description: "The namespaces and drivers with the most devices, including allocated devices that are on no node " +
				"that is scraped.",
			Kind: Table, NoData: "kube-state-metrics has no metrics of claims", Width: 8, Height: 8, MayBeEmpty: no,
			sort: "Devices", Total: true,
			Targets: []Target{{
				Expr: `topk(20, count by (<namespace>, driver) (` +
					`group by (<namespace>, scope, resourceclaim, driver, pool, device) (` +
					`label_replace(kube_resourceclaim_allocation_device_info` + of + `, "scope", "cluster", "pool", ".*"))))`,
				Column: "Devices", Unit: "none",
			}},
		},
	}
}
