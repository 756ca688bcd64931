// Package ocm has the names that Open Cluster Management gives to the objects, users and groups of clusters that
// join a hub.
package ocm

import "time"

const (
	// Signer is the signer of the certificates with which clusters authenticate at the broker.
	Signer = "open-cluster-management.io/grpc"
	// Registrar is the account that creates CertificateSigningRequests for clusters. By this account the controllers
	// of Open Cluster Management, add-ons and clusteradm recognize requests that came through a broker.
	Registrar = "system:serviceaccount:open-cluster-management-hub:grpc-server-sa"
	// RequesterAnnotation names the requesting user. It counts only on requests that the Registrar created.
	RequesterAnnotation = "open-cluster-management.io/csr-user"
	// ClusterLabel names the cluster of a request.
	ClusterLabel = "open-cluster-management.io/cluster-name"
	// AddOnLabel names the add-on of a request.
	AddOnLabel = "open-cluster-management.io/addon-name"
	// UserPrefix begins the user name of each agent.
	UserPrefix = "system:open-cluster-management:"
	// AllClusters is the group of all agents.
	AllClusters = UserPrefix + "managed-clusters"
	// LeaseName is the name of the Lease of a cluster, in the cluster's namespace.
	LeaseName = "managed-cluster-lease"
	// LeasePeriod is the period of the renewals of a cluster that sets none.
	LeasePeriod = time.Minute
	// MissedPeriods is the number of periods without a renewal after which an agent counts as disconnected.
	MissedPeriods = 5
)

// PeriodOf returns the period of the renewals of a cluster from spec.leaseDurationSeconds of its ManagedCluster.
func PeriodOf(leaseDurationSeconds int64) time.Duration {
	if leaseDurationSeconds > 0 {
		return time.Duration(leaseDurationSeconds) * time.Second
	}
	return LeasePeriod
}
