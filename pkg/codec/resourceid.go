package codec

import "github.com/google/uuid"

// ResourceID derives the resource id for sources without Kubernetes UIDs: a UUID version 5 in the OID namespace
// over "<sourceID>-<gvr>-<namespace>-<name>". gvr is <resource>.<group>, such as
// "manifestworks.work.open-cluster-management.io".
//
// The dashes are not escaped, so namespace "a-b" with name "c" and namespace "a" with name "b-c" have the same
// id. All OCM sources derive it this way; a Hawser source uses the UID of the Kubernetes object instead.
func ResourceID(sourceID, gvr, namespace, name string) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(sourceID+"-"+gvr+"-"+namespace+"-"+name)).String()
}
