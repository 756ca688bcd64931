package pebble

import (
	"fmt"
	"math"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/resident"
)

// state is what a store knows without a look at the disk.
type state struct {
	head       store.Head
	terms      resident.Terms
	subscribed resident.Subscriptions
	marks      resident.Bookmarks
	tally      *resident.Tally
	behind     map[store.Key]string // id that waits to the id of its tombstone

	// Of loading:
	headFound bool
	lastTerm  uint64 // number of the newest term
}

func newState() state {
	return state{
		subscribed: make(resident.Subscriptions), tally: resident.NewTally(), behind: make(map[store.Key]string),
		marks: make(resident.Bookmarks),
	}
}

// loaded are the kinds of values that a state is made of. They sort before all
// others.
var loaded = [...]byte{keyBookmark, keyCluster, keyTerm, keyHead, keyEpoch, keyMeta}

// load takes in one value of these kinds; they come in key order. A record is
// only decoded: the caller has a look at it before it adds it.
func (s *state) load(key, body []byte) (m *store.Meta, err error) {
	switch kind, alone := key[0], len(key) == 1; {
	case kind == keyBookmark:
		s.marks[string(key[1:])] = append([]byte{}, body...)
	case kind == keyCluster:
		var p resident.Place
		if p.DataType, p.Cluster, err = parseClusterKey(key); err == nil {
			s.subscribed[p] = string(body)
		}
	case kind == keyTerm:
		return nil, s.loadTerm(key, body)
	case kind == keyHead && alone:
		if s.head.Revision, err = decodeNumber(body); err != nil {
			return nil, damage(key, err.Error())
		}
		s.headFound = true
	case kind == keyEpoch && alone:
		s.head.Epoch = string(body)
	case kind == keyMeta:
		return parseMeta(key, body)
	default:
		return nil, damage(key, "no release wrote such a key")
	}
	return nil, err
}

func (s *state) loadTerm(key, body []byte) error {
	number, err := parseNumberKey(key)
	if err != nil {
		return err
	}
	t, err := decodeTerm(body)
	if err != nil {
		return damage(key, err.Error())
	}
	s.terms = append(s.terms, t)
	s.lastTerm = number
	return nil
}

// addRecord takes in a record.
func (s *state) addRecord(m *store.Meta) {
	s.tally.Load(m)
	if id := store.WaitsBehind(m); id != "" {
		s.behind[beside(m.Key, id)] = m.ResourceID
	}
}

// beside is k with another id.
func beside(k store.Key, id string) store.Key {
	k.ResourceID = id
	return k
}

// highest is the highest revision that there can be.
func (s *state) highest() uint64 {
	if !s.headFound {
		return math.MaxUint64 - 1
	}
	return s.head.Revision
}

// aboveHead says what is wrong with the revisions of a record, "" if nothing is.
func (s *state) aboveHead(m *store.Meta) string {
	if max(m.SpecRevision, m.StatusRevision) <= s.highest() {
		return ""
	}
	return fmt.Sprintf("its revisions %d and %d are above the head %d", m.SpecRevision, m.StatusRevision, s.head.Revision)
}
