package syncstate

import (
	"encoding/binary"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/fields"
	"github.com/hawser-io/hawser/pkg/codec"
)

// syncRows are the rows of all sources as this broker has followed them. They are bookmarks of the store:
//
//	sync/<data type>/<source>/<cluster>          the state for one cluster
//	sync/<data type>/<source>/                   the state for the clusters without a row
//	withheld/<data type>/<source>/<cluster>/<n>  part n of the deletions that the source withholds there
//	sync/<data type>/<source>                    another value with each change of the rows above
//
// A writer reads the rows and writes on condition that the last row has not changed. Each row names the incarnation
// of the store in which it was written. In a later one it counts as unknown.
type syncRows struct {
	// works is the number of withheld deletions. While it is 0, changes of records do not take the lock. It is
	// written under the lock.
	works atomic.Int64

	mu  sync.Mutex
	all map[store.Scope]*source // by owner
}

// source holds the rows of one source.
type source struct {
	// rest is the row of all clusters that have none.
	rest stateValue
	// named are the clusters with rows.
	named map[string]*clusterState
}

// clusterState holds the rows of a source for one cluster.
type clusterState struct {
	// row is nil if the cluster counts as the rest.
	row *stateValue
	// parts is the number of rows with withheld deletions. They name the incarnation, the subscription on which the
	// source reported, and its reason.
	parts        int
	incarnation  string
	subscription string
	reason       string
	works        map[string]withheldWork // by id
}

// withheldWork is a withheld deletion and the row that has it.
type withheldWork struct {
	codec.WithheldDeletion
	part int
}

// at returns the state for a cluster.
func (o *source) at(cluster, incarnation string) sourceState {
	if c := o.named[cluster]; c != nil && c.row != nil {
		return c.row.in(incarnation)
	}
	return o.rest.in(incarnation)
}

// withholder returns the subscription on which the source reported withheld deletions, "" if there is none. c may
// be nil.
func (c *clusterState) withholder(incarnation string) string {
	if c == nil || c.incarnation != incarnation {
		return ""
	}
	return c.subscription
}

// of returns the rows of a source. The caller holds mu.
func (r *syncRows) of(owner store.Scope) *source {
	if o := r.all[owner]; o != nil {
		return o
	}
	return &source{}
}

// owners returns the names of the sources with rows of a data type.
func (r *syncRows) owners(d codec.DataType) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for scope := range r.all {
		if scope.DataType == d {
			names = append(names, scope.Owner)
		}
	}
	return names
}

// load reads the rows that the store has.
func (r *syncRows) load(s store.Replica) {
	for _, prefix := range []string{statePrefix, withheldPrefix} {
		for name, value := range s.Bookmarks(prefix) {
			if n, ok := parseRow(name); ok {
				r.follow(n, value)
			}
		}
	}
}

// follow applies a change of one row; value is nil if it was removed.
func (r *syncRows) follow(n rowName, value []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.all[n.owner]
	if o == nil {
		o = &source{named: map[string]*clusterState{}}
		r.all[n.owner] = o
	}
	if n.part < 0 && n.cluster == "" {
		o.rest = parseState(value)
		return
	}
	c := o.named[n.cluster]
	if c == nil {
		c = &clusterState{works: map[string]withheldWork{}}
		o.named[n.cluster] = c
	}
	switch {
	case n.part >= 0:
		before := len(c.works)
		c.followPart(n.part, value)
		r.works.Add(int64(len(c.works) - before))
	case value == nil:
		c.row = nil
	default:
		row := parseState(value)
		c.row = &row
	}
	if c.row == nil && c.parts == 0 {
		delete(o.named, n.cluster)
	}
}

// followPart applies a change of one part of the withheld deletions.
func (c *clusterState) followPart(part int, value []byte) {
	maps.DeleteFunc(c.works, func(_ string, w withheldWork) bool { return w.part == part })
	if value == nil {
		c.parts = min(c.parts, part) // a writer removes the later parts too
		return
	}
	c.parts = max(c.parts, part+1)
	r := fields.NewReader(value)
	c.incarnation, c.subscription, c.reason = r.String(), r.String(), r.String()
	works := map[string]withheldWork{}
	for r.More() {
		w := codec.WithheldDeletion{ResourceID: r.String(), Name: r.String(), Revision: r.Uint64()}
		works[w.ResourceID] = withheldWork{w, part}
	}
	if r.End() == "" { // otherwise a later release wrote it: nothing of it is known to be withheld
		maps.Copy(c.works, works)
	}
}

// changed drops the withheld deletion of a record whose spec changed, or that was removed.
func (r *syncRows) changed(ch *store.Change) {
	if r.works.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for scope, o := range r.all {
		c := o.named[ch.Key.Cluster]
		if scope.DataType != ch.Key.DataType || c == nil {
			continue
		}
		if w, ok := c.works[ch.Key.ResourceID]; ok && (ch.Gone || w.Revision != ch.Revision) {
			delete(c.works, ch.Key.ResourceID)
			r.works.Add(-1)
		}
	}
}

// scopes adds the clusters with withheld deletions.
func (r *syncRows) scopes(all map[store.Scope]struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for scope, o := range r.all {
		for cluster, c := range o.named {
			if len(c.works) > 0 {
				all[store.Scope{DataType: scope.DataType, Cluster: cluster}] = struct{}{}
			}
		}
	}
}

// findings returns the withheld deletions of a cluster.
func (r *syncRows) findings(at store.Scope, incarnation string) (found []Discrepancy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for scope, o := range r.all {
		c := o.named[at.Cluster]
		if scope.DataType != at.DataType || c.withholder(incarnation) == "" {
			continue
		}
		for id, w := range c.works {
			found = append(found, Discrepancy{
				Cause: Withheld, Scope: at, ResourceID: id, Name: w.Name, Source: scope.Owner, Revision: w.Revision, Detail: c.reason,
			})
		}
	}
	return found
}

// stateValue is the value of a row with a state.
type stateValue struct {
	state       sourceState
	incarnation string
}

// in returns the state in an incarnation of the store.
func (v stateValue) in(incarnation string) sourceState {
	if v.incarnation != incarnation {
		return unknown
	}
	return v.state
}

var stateNames = [...]string{unknown: "unknown", synced: "synced", blocked: "blocked"}

func (v stateValue) encode() []byte { return []byte(stateNames[v.state] + " " + v.incarnation) }

// parseState is the inverse of encode. A value that it cannot read is that of no incarnation.
func parseState(value []byte) (v stateValue) {
	name, incarnation, _ := strings.Cut(string(value), " ")
	if i := slices.Index(stateNames[:], name); i >= 0 {
		v = stateValue{sourceState(i), incarnation}
	}
	return v
}

// maxReason is the maximum length of a reason in a row, in bytes. With it, a part has space for any work.
const maxReason = 1 << 10

// encodeWithheld returns the values of the parts for withheld deletions. There is at least one.
func encodeWithheld(incarnation, subscription, reason string, works map[string]codec.WithheldDeletion) (parts [][]byte) {
	reason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
	var head []byte
	for _, s := range []string{incarnation, subscription, reason} {
		head = fields.AppendString(head, s)
	}
	part := slices.Clone(head)
	for _, id := range slices.Sorted(maps.Keys(works)) {
		w := fields.AppendString(fields.AppendString(nil, id), works[id].Name)
		w = binary.AppendUvarint(w, works[id].Revision)
		if len(part)+len(w) > store.MaxBookmark {
			parts = append(parts, part)
			part = slices.Clone(head)
		}
		part = append(part, w...)
	}
	return append(parts, part)
}

// writes collects the writes that change the rows of one source.
type writes struct {
	owner       store.Scope
	incarnation string
	// rest is the state of the clusters without a row, after the writes.
	rest sourceState
	ops  []store.Op
}

// next is the state of a cluster after a change.
type next struct {
	state sourceState
	// parts are the new parts of the withheld deletions; keep: they stay as they are.
	parts [][]byte
	keep  bool
}

func (w *writes) set(name string, value []byte) {
	w.ops = append(w.ops, store.Op{Kind: store.SetBookmark, Name: name, Value: value})
}

func (w *writes) setState(cluster string, state sourceState) {
	w.set(stateRow(w.owner, cluster), stateValue{state, w.incarnation}.encode())
}

// setWithheld replaces the parts of the withheld deletions. c is the previous state, which may be nil.
func (w *writes) setWithheld(cluster string, c *clusterState, parts [][]byte) {
	for i, part := range parts {
		w.set(withheldRow(w.owner, cluster, i), part)
	}
	for i := len(parts); c != nil && i < c.parts; i++ {
		w.set(withheldRow(w.owner, cluster, i), nil)
	}
}

// cluster changes the state of a cluster from c, which may be nil, to n.
func (w *writes) cluster(name string, c *clusterState, n next) {
	if !n.keep {
		w.setWithheld(name, c, n.parts)
	}
	row := c != nil && c.row != nil
	switch {
	case n.state == w.rest && row:
		w.set(stateRow(w.owner, name), nil)
	case n.state != w.rest && (!row || *c.row != stateValue{n.state, w.incarnation}):
		w.setState(name, n.state)
	}
}

// Prefixes of the names of rows.
const (
	statePrefix    = "sync/"
	withheldPrefix = "withheld/"
)

// rowName is the parsed name of a row with a state (part is -1), or of a part of the withheld deletions.
type rowName struct {
	owner   store.Scope
	cluster string // "": the other clusters
	part    int
}

// joined returns a name. Its elements may contain slashes.
func joined(prefix string, owner store.Scope, more ...string) string {
	d := owner.DataType
	elements := append([]string{d.Group, d.Version, d.Resource, owner.Owner}, more...)
	for i := range elements {
		elements[i] = url.PathEscape(elements[i])
	}
	return prefix + strings.Join(elements, "/")
}

func serialRow(owner store.Scope) string { return joined(statePrefix, owner) }

func stateRow(owner store.Scope, cluster string) string { return joined(statePrefix, owner, cluster) }

func withheldRow(owner store.Scope, cluster string, part int) string {
	return joined(withheldPrefix, owner, cluster, strconv.Itoa(part))
}

// parseRow is the inverse of stateRow and withheldRow. ok is false for the name of another bookmark.
func parseRow(name string) (n rowName, ok bool) {
	elements := strings.Split(name, "/")
	for i, e := range elements {
		text, err := url.PathUnescape(e)
		if err != nil {
			return n, false
		}
		elements[i] = text
	}
	if len(elements) < 6 {
		return n, false
	}
	n.owner = store.Scope{DataType: codec.DataType{Group: elements[1], Version: elements[2], Resource: elements[3]}, Owner: elements[4]}
	n.cluster = elements[5]
	switch prefix := elements[0] + "/"; {
	case prefix == statePrefix && len(elements) == 6:
		n.part = -1
		return n, true
	case prefix == withheldPrefix && len(elements) == 7:
		part, err := strconv.Atoi(elements[6])
		n.part = part
		return n, err == nil && part >= 0
	}
	return n, false
}
