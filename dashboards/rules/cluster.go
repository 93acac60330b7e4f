package rules

// clusterClaims count the claims of a whole cluster that wait for devices, by kube-state-metrics if
// it has metrics of claims (internal/store/resourceclaim.go). Its label resourceclaim is the
// exporter's resourceclaim_name.
func clusterClaims() []recording {
	return []recording{
		{name: "namespace:dra_pending_claims:count", expr: `
			count by (cluster, namespace) (
			  max by (cluster, namespace, resourceclaim) (kube_resourceclaim_status_allocated) == 0)`},
	}
}
