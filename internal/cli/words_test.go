package cli

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// TestWords_OneSpelling: table, JSON and flag have the same word for each value of the protocol.
func TestWords_OneSpelling(t *testing.T) {
	each := func(d protoreflect.EnumDescriptor, words []string, name func(n protoreflect.EnumNumber) string) {
		for i := range d.Values().Len() {
			n := d.Values().Get(i).Number()
			if w := name(n); n != 0 && !slices.Contains(words, w) {
				t.Errorf("%s is shown as %q, and no value of the flag", d.Values().Get(i).Name(), w)
			}
		}
	}
	each(hawserv1.ClusterState(0).Descriptor(), clusterWords, func(n protoreflect.EnumNumber) string {
		return clusterWord(&hawserv1.ListClustersResponse{State: hawserv1.ClusterState(n)})
	})
	each(hawserv1.WorkState(0).Descriptor(), workWords, func(n protoreflect.EnumNumber) string {
		return stateWord(&hawserv1.ListWorksResponse{State: hawserv1.WorkState(n)})
	})
	each(hawserv1.WorkHealth(0).Descriptor(), healthWords, func(n protoreflect.EnumNumber) string {
		return healthWord(&hawserv1.ListWorksResponse{State: hawserv1.WorkState_WORK_STATE_LIVE, Reported: true, Health: hawserv1.WorkHealth(n)})
	})
	each(hawserv1.DiscrepancyCause(0).Descriptor(), causeWords, func(n protoreflect.EnumNumber) string { return wordOf(hawserv1.DiscrepancyCause(n)) })
	chosen := []string{"in-sync", "NEVERCONNECTED", "not_accepted"}
	if err := someOf(newRoot(Env{}), "state", chosen, clusterWords); err != nil || !slices.Equal(chosen, []string{"InSync", "NeverConnected", "NotAccepted"}) {
		t.Errorf("%v, %v", chosen, err)
	}
}
