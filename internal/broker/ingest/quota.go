package ingest

import (
	"cmp"
	"fmt"
	"time"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// spaceDelay is the retry delay for a client over its quota. Only deletions or an operator can free quota.
const spaceDelay = time.Minute

// overQuota returns the error for an event that exceeds a quota. It names the attribute that exceeds it, so the
// client knows that its other events may be accepted. It does not reveal the usage of other sources on the
// cluster.
func overQuota(x quota.Excess, env *codec.Envelope) *transport.Error {
	what := map[quota.Resource]string{
		quota.Works: "works", quota.Bytes: "bytes of works", quota.Statuses: "bytes of statuses", quota.Clusters: "clusters with works",
		quota.Records: "records of works, deleted ones included",
	}[x.Resource]
	attribute := cmp.Or(map[quota.Resource]string{quota.Bytes: "data", quota.Statuses: "data", quota.Clusters: codec.ExtClusterName}[x.Resource], codec.ExtResourceID)
	e := &transport.Error{
		Code: transport.CodeOverloaded, Next: transport.NextBackOff, Delay: spaceDelay, Attribute: attribute,
		Message: fmt.Sprintf("quota exceeded: source %s may have %d %s", env.Source, x.Limit, what),
		Hint:    "delete some, or have the quota of the source raised in the broker's configuration; hawser get quotas shows it",
	}
	if x.Scope == quota.Cluster {
		e.Message = fmt.Sprintf("quota exceeded: cluster %s may have %d %s, of all sources together", env.Cluster, x.Limit, what)
		e.Hint = "delete some, or have clusterQuota raised in the broker's configuration; hawser get quotas shows it"
	}
	return e
}
