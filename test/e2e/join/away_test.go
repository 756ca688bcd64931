package join

import (
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "open-cluster-management.io/api/cluster/v1"
	workv1 "open-cluster-management.io/api/work/v1"
)

// TestJoin_ClusterAway: what an operator sees of a disconnected cluster and its works. Nothing of that is
// written into the works on the hub. When the agent is back, the cluster is in sync within seconds, although it
// had something to delete. Then its API server goes down, and the row reports it.
func TestJoin_ClusterAway(t *testing.T) {
	s := requester(t)
	s.hawser("accept", "cluster1", "--context", "hub", "--wait")
	for _, name := range []string{"stays", "changes", "goes"} {
		s.apply(name)
		s.arrives(name)
	}
	get := s.access(s.at, "get", "clusters")
	s.run(s.kubectl, "--context", "hub", "patch", "managedcluster", "cluster1", "--type=merge", "-p", `{"spec":{"leaseDurationSeconds":2}}`)
	s.row(` InSync .* True .* 3 +0 +0 +0 +now `, get)
	works := s.access(s.at, "get", "works", "--cluster", "cluster1")
	s.row(`^cluster1 +stays +\S+ +Live .* (Available|Applied) +- .*-$`, works)
	s.available()
	was := s.work("stays").ResourceVersion

	s.agent()
	if _, err := s.hub.WorkV1().ManifestWorks("cluster1").Patch(s.Context(), "changes", types.MergePatchType,
		[]byte(`{"spec":{"deleteOption":{"propagationPolicy":"Orphan"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.hub.WorkV1().ManifestWorks("cluster1").Delete(s.Context(), "goes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.row(`^cluster1 +Disconnected .* 2 +0 +2 +1 +\d+s .* no agent for \d+s, 2 works wait for it: check that it runs`, get)
	s.row(`^cluster1 +stays +\S+ +Live +1 +1 +Unknown +- +the cluster is Disconnected since 20\S+Z; last known: A`, works)
	s.row(`^cluster1 +changes +\S+ +Live +2 +1 +Unknown +- +the cluster is Disconnected since 20\S+Z; last known: A`, works)
	s.row(`^cluster1 +goes +\S+ +Deleting .* the cluster is Disconnected since 20\S+Z$`, works)
	if out := s.hawser(append(works, "stays", "-o", "json")...); !strings.Contains(out, `"health": "Unknown"`) || !strings.Contains(out, `"message": "the cluster is Disconnected since 20`) {
		t.Errorf("as JSON a work is %s", out)
	}
	s.eventuallyTrue("Available is Unknown", func() (bool, string) {
		c, text := s.managedCluster()
		return meta.IsStatusConditionPresentAndEqual(c.Status.Conditions, clusterv1.ManagedClusterConditionAvailable, metav1.ConditionUnknown), text
	})
	if now := s.work("stays").ResourceVersion; now != was {
		t.Errorf("a work was written although only its cluster is away: resourceVersion %s, it was %s", now, was)
	}

	s.agent = s.start("cluster1", "hawser-agent")
	s.row(`^cluster1 +InSync .* 2 +0 +0 +0 +now .* -$`, get)
	s.row(`^cluster1 +changes +\S+ +Live +2 +2 +A`, works)
	s.available()

	if err := s.planes["cluster1"].Kill(); err != nil {
		t.Fatal(err)
	}
	s.row(`^cluster1 .* False .* not available for \d+s: The API server of the cluster does not answer its agent; check its API server$`, get)
	s.row(`^cluster1 +stays +\S+ +Live +1 +1 +Unknown +- +the cluster is not available since 20\S+Z: The API server of the cluster`, works)
}

// row waits until a line of the table matches a regular expression.
func (s *stay) row(like string, command []string) {
	s.Helper()
	is := regexp.MustCompile("(?m)" + like)
	s.eventuallyTrue("a row is like "+like, func() (bool, string) {
		out, err := s.try(command...)
		return err == nil && is.MatchString(out), out
	})
}

// work returns a work of the hub.
func (s *stay) work(name string) *workv1.ManifestWork {
	s.Helper()
	w, err := s.hub.WorkV1().ManifestWorks("cluster1").Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return w
}
