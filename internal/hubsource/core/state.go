package core

import (
	"maps"
	"slices"
	"strings"

	"github.com/hawser-io/hawser/pkg/codec"
)

// State is what a source keeps on its hub from one process to the next. It goes
// back in time together with the hub, which is what makes it useful.
type State struct {
	// Cursor is how far the statuses of the broker's stream are on the hub, ""
	// when that is not known.
	Cursor string
	// Withheld names the clusters on which nothing is deleted because the hub
	// lacks it, until a comparison finds that nothing is missing there any more;
	// [everywhere] stands for all. Sorted.
	Withheld []string
	// Trusted is the position of the hub that the broker was told when the last
	// doubt about the hub as a whole had ended, nil when there never was one. A
	// broker's store that does not know it is from before that.
	Trusted *codec.HubPosition
	// Against is the position that the doubt about the hub as a whole was found
	// against: one that is not later says nothing new. nil when there is no such
	// doubt, or none of a position.
	Against *codec.HubPosition
	// Version is the resource version under which the hub keeps all that, "" when it
	// does not, or nobody knows.
	Version string
}

// everywhere in State.Withheld are all clusters. It is no cluster's name.
const everywhere = "*"

// maxWithheld is how many clusters are told apart in a State; a ConfigMap has
// room for a few more.
const maxWithheld = 2000

// The keys of a State in a ConfigMap.
const (
	keyCursor   = "cursor"
	keyWithheld = "withheld"
	keyTrusted  = "settled"
	keyAgainst  = "against"
)

// Data returns the state as the data of a ConfigMap.
func (s State) Data() map[string]string {
	data := map[string]string{}
	if s.Cursor != "" {
		data[keyCursor] = s.Cursor
	}
	if len(s.Withheld) > 0 {
		data[keyWithheld] = strings.Join(s.Withheld, "\n")
	}
	for key, p := range map[string]*codec.HubPosition{keyTrusted: s.Trusted, keyAgainst: s.Against} {
		if p != nil {
			data[key] = p.UID + "\n" + p.ResourceVersion
		}
	}
	return data
}

// StateOf reads the data of a ConfigMap. What it does not know, it ignores.
func StateOf(data map[string]string) State {
	return State{
		Cursor: data[keyCursor], Withheld: sortedSet(strings.Fields(data[keyWithheld])),
		Trusted: positionOf(data[keyTrusted]), Against: positionOf(data[keyAgainst]),
	}
}

func positionOf(text string) *codec.HubPosition {
	uid, version, ok := strings.Cut(text, "\n")
	if !ok {
		return nil
	}
	return &codec.HubPosition{UID: uid, ResourceVersion: version}
}

// doubtsAll reports whether nothing is deleted anywhere.
func (s State) doubtsAll() bool { return len(s.Withheld) > 0 && s.Withheld[0] == everywhere }

// equal reports whether there is nothing new to save in s.
func (s State) equal(t State) bool {
	return s.Cursor == t.Cursor && slices.Equal(s.Withheld, t.Withheld) &&
		samePosition(s.Trusted, t.Trusted) && samePosition(s.Against, t.Against)
}

// withheldOf returns the names of the set for a State.
func withheldOf(set map[string]bool) []string {
	if set[everywhere] || len(set) > maxWithheld {
		return []string{everywhere}
	}
	return slices.Sorted(maps.Keys(set))
}

func sortedSet(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
