package registration

import (
	"strconv"
	"strings"

	"github.com/hawser-io/hawser/pkg/codec"
)

// visibility is who looks at a place, and what it may see there.
type visibility struct {
	streamScope
	// early: what is there is shown before the hub has accepted the cluster.
	early bool
	// user is whose requests are shown, "" where all are. Of who has no certificate yet they alone are.
	user string
	// agents begins the names of users whose requests an agent is shown too, and those of nobody;
	// "" shows none of these. Bootstrap tokens name any cluster, and a klusterlet asks for no
	// certificate any more when it sees ten requests for its cluster, whoever made them.
	agents string
}

// hidden reports whether nothing may be said of the place. What was shown before is not said to be
// gone either: that a cluster may not see its add-ons does not mean that the hub has none.
func (v visibility) hidden(accepted bool) bool { return !accepted && !v.early }

// sees reports whether an object of the place is shown. A request without a requester came another
// way than over a broker.
func (v visibility) sees(o *object) bool {
	return v.dataType != codec.SigningRequests || v.user == "" || o.requester == v.user ||
		v.agents != "" && (o.requester == "" || strings.HasPrefix(o.requester, v.agents))
}

// sent is what a stream has told of one name.
type sent struct {
	uid, version string
	sequence     uint64
}

// objectEvent is one thing that a stream has to tell: an object, or that one is gone.
type objectEvent struct {
	name   string
	object *object // nil: gone is
	gone   sent
}

// pendingEvents returns what has to be told, in this order, so that whoever was told of what is in told
// knows what is shown, and nothing else. An object with another uid is another object: the one
// before it is gone first.
func pendingEvents(v visibility, reported map[string]sent, shown []*object) (notes []objectEvent) {
	there := make(map[string]string, len(shown))
	for _, o := range shown {
		if v.sees(o) {
			there[o.name] = o.uid
		}
	}
	for name, s := range reported {
		if uid, ok := there[name]; !ok || uid != s.uid {
			notes = append(notes, objectEvent{name: name, gone: s})
		}
	}
	for _, o := range shown {
		if s, ok := reported[o.name]; v.sees(o) && (!ok || s.sequence < o.sequence) {
			notes = append(notes, objectEvent{name: o.name, object: o})
		}
	}
	return notes
}

// compare takes what a party says that it has. What of the shown it has in another version, or not
// at all, counts as not told. It returns what the hub does not have: who sees a part only is told so
// too, or it would wait for a request that a hub has lost; of what is there for others nothing is said.
func compare(reported map[string]sent, shown []*object, list []codec.ResourceVersion) (gone []objectEvent) {
	has := make(map[string]int64, len(list))
	for _, e := range list {
		has[e.ResourceID] = e.ResourceVersion
	}
	for _, o := range shown {
		version, err := strconv.ParseInt(o.version, 10, 64)
		if had, ok := has[o.uid]; !ok || err != nil || had != version {
			if s, ok := reported[o.name]; ok {
				s.sequence = 0
				reported[o.name] = s
			}
		}
		delete(has, o.uid)
	}
	for _, s := range reported {
		delete(has, s.uid) // it is told by name that it is gone
	}
	for uid, version := range has {
		gone = append(gone, objectEvent{gone: sent{uid: uid, version: strconv.FormatInt(version, 10)}})
	}
	return gone
}
