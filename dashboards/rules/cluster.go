package rules

// clusterClaims count the claims of a whole cluster, including those without a node, by
// kube-state-metrics if it has metrics of claims (internal/store/resourceclaim.go). Its label
// resourceclaim is the exporter's resourceclaim_name.
func clusterClaims() []recording {
	const claim = "max by (cluster, namespace, resourceclaim)"
	return []recording{
		{name: "namespace:dra_pending_claims:count", expr: `
			count by (cluster, namespace) (` + claim + ` (kube_resourceclaim_status_allocated) == 0)`},
		{name: "namespace:dra_allocated_claims:count", expr: `
			count by (cluster, namespace) (` + claim + ` (kube_resourceclaim_status_allocated) == 1)`},
		// Allocated claims that are not reserved: no pod may use them.
		{name: "namespace:dra_unreserved_claims:count", expr: `
			count by (cluster, namespace) (
			  ` + claim + ` (kube_resourceclaim_status_allocated) == 1
			  unless on (cluster, namespace, resourceclaim) kube_resourceclaim_status_reserved_for
			)`},
		{name: "cluster:dra_listed_devices:count", expr: `
			count by (cluster, driver) (
			  group by (cluster, driver, pool_name, device_name) (kube_resourceslice_device_info)
			)`},
	}
}
