package registration

import (
	"strconv"
	"strings"

	"github.com/hawser-io/hawser/pkg/codec"
)

// visibility is a scope and the objects that its viewer may see there.
type visibility struct {
	streamScope
	// early is true if objects are shown before the hub has accepted the cluster.
	early bool
	// user is the requester whose certificate requests are shown, "" for all. A bootstrap client sees only its own.
	user string
	// agents is a prefix of user names. An agent also sees the requests of these users, and those without a
	// requester. "" shows none of these. The prefix is needed because bootstrap tokens can name any cluster. A
	// klusterlet stops requesting certificates when it sees ten requests for its cluster, from any requester.
	agents string
}

// hidden reports whether nothing in this scope may be shown. Objects shown before are not reported as deleted:
// they may still exist on the hub.
func (v visibility) hidden(accepted bool) bool { return !accepted && !v.early }

// sees reports whether an object is shown. A request without a requester was not made through a broker.
func (v visibility) sees(o *object) bool {
	return v.dataType != codec.SigningRequests || v.user == "" || o.requester == v.user ||
		v.agents != "" && (o.requester == "" || strings.HasPrefix(o.requester, v.agents))
}

// sent is the state of one name that a stream has sent.
type sent struct {
	uid, version string
	sequence     uint64
}

// objectEvent is one event to send: an object, or its deletion.
type objectEvent struct {
	name   string
	object *object // nil: the event is the deletion of gone
	gone   sent
}

// pendingEvents returns the events, in order, that bring a client from the state in reported to the visible
// state. An object with another uid is another object: first the old one is reported as deleted.
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

// compare compares the list of a client with the shown objects. It changes reported, so that an object that the
// client lacks, or has in another version, is sent again.
//
// It returns deletions for listed objects that the hub does not have. A client that sees only some of the
// objects gets these deletions too. Otherwise it would wait for ever for a certificate request that the hub has
// lost. Objects that exist but are hidden from the client are not mentioned.
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
		delete(has, s.uid) // pendingEvents reports the deletion of this name
	}
	for uid, version := range has {
		gone = append(gone, objectEvent{gone: sent{uid: uid, version: strconv.FormatInt(version, 10)}})
	}
	return gone
}
