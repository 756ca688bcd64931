package registration

import (
	"testing"

	"github.com/hawser-io/hawser/pkg/codec"
)

// TestCompare_ReportsMissingRecords checks that a client gets the deletion of a listed object that the hub does
// not have. This also holds for a client that sees only some of the objects. The deletions do not name objects
// that only other clients see.
func TestCompare_ReportsMissingRecords(t *testing.T) {
	shown := []*object{{name: "mine", uid: "u1", version: "5", requester: "me"}, {name: "others", uid: "u2", version: "6", requester: "you"}}
	reported := map[string]sent{"mine": {uid: "u1", version: "5", sequence: 3}}
	gone := compare(reported, shown, []codec.ResourceVersion{{ResourceID: "u1", ResourceVersion: 5}, {ResourceID: "u2"}, {ResourceID: "lost", ResourceVersion: 4}})
	if len(gone) != 1 || gone[0].gone.uid != "lost" || gone[0].gone.version != "4" || gone[0].object != nil {
		t.Errorf("removed: %+v", gone)
	}
	if reported["mine"].sequence != 3 {
		t.Error("an object that the client has in this version is sent again")
	}
}
