package postgres

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/hawser-io/hawser/internal/broker/quota"
	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/pkg/codec"
)

// transaction is a commit between its reads and its writes: the records that the batch needs, with the changes of
// its ops so far. It has no I/O. It implements [store.Reader].
type transaction struct {
	memory *memIndex // at the head that the commit has locked
	head   uint64
	use    *quota.PendingUsage

	stored map[store.Key]*store.Meta // as read; nil: there is none
	metas  map[store.Key]*store.Meta // nil: there is none
	names  map[store.Key]string      // the ResourceID of the key is a name
	behind map[store.Key]string      // queued id → id of its tombstone
	queued map[store.Key][]byte      // events of queued specs

	bookmarks map[string]*store.Bookmark // the changed ones; nil: removed

	touched  []store.Key // written records, in the order of their first write
	written  map[store.Key]bool
	payloads map[payloadKey][]byte
	entries
}

type payloadKey struct {
	store.Key
	kind byte
}

// newTransaction begins a transaction on the memory m, which must be at the head that the commit has locked.
func newTransaction(m *memIndex, r *reads) *transaction {
	t := &transaction{
		memory: m, head: m.state.At.Revision, use: m.state.Usage.Pending(),
		stored: r.metas, metas: make(map[store.Key]*store.Meta, len(r.metas)), queued: r.queued,
		names: make(map[store.Key]string), behind: make(map[store.Key]string), payloads: make(map[payloadKey][]byte),
		written: make(map[store.Key]bool), bookmarks: make(map[string]*store.Bookmark),
	}
	for k, meta := range r.metas {
		t.metas[k] = meta
		t.index(nil, meta)
	}
	return t
}

// index replaces the names and the queued id of a record.
func (t *transaction) index(old, n *store.Meta) {
	for _, name := range store.ReservedNames(old) {
		delete(t.names, old.Key.Beside(name))
	}
	for _, name := range store.ReservedNames(n) {
		t.names[n.Key.Beside(name)] = n.ResourceID
	}
	if id := store.QueuedID(old); id != "" {
		delete(t.behind, old.Key.Beside(id))
	}
	if id := store.QueuedID(n); id != "" {
		t.behind[n.Key.Beside(id)] = n.ResourceID
	}
}

// Meta implements [store.Reader].
func (t *transaction) Meta(k store.Key) (*store.Meta, error) {
	m, ok := t.metas[k]
	if !ok {
		return nil, fmt.Errorf("store: the commit needs record %s, which it has not read: this is a bug", value.PrintableKey(value.Key(value.Meta, k)))
	}
	return m, nil
}

// IDByName implements [store.Reader].
func (t *transaction) IDByName(dt codec.DataType, cluster, name string) (id string, ok bool, err error) {
	id, ok = t.names[store.Key{DataType: dt, Cluster: cluster, ResourceID: name}]
	return id, ok, nil
}

// BlockingTombstone implements [store.Reader].
func (t *transaction) BlockingTombstone(k store.Key) (id string, ok bool) {
	id, ok = t.behind[k]
	return id, ok
}

// IsSubscribed implements [store.Reader].
func (t *transaction) IsSubscribed(dt codec.DataType, cluster string) bool {
	if len(t.bookmarks) > 0 {
		return t.Bookmark(store.BindingName(dt, cluster)) != nil
	}
	return t.memory.state.Bookmarks.IsSubscribed(dt, cluster)
}

// Bookmark implements [store.Reader].
func (t *transaction) Bookmark(name string) *store.Bookmark {
	if b, changed := t.bookmarks[name]; changed {
		return b
	}
	return t.memory.state.Bookmarks.Get(name)
}

// isOfRecord reports whether an op is about a record. The memory has all that the others need.
func isOfRecord(op *store.Op) bool { return op.Kind < store.SetBookmark }

// isStorable reports whether all texts of an op that become text columns are valid.
func isStorable(op *store.Op) bool {
	if !isOfRecord(op) {
		return true
	}
	for _, s := range [...]string{op.Key.DataType.String(), op.Key.Cluster, op.Key.ResourceID, op.Owner, op.Name} {
		if !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
			return false
		}
	}
	return true
}

// do decides one op and adds the decision to the transaction.
func (t *transaction) do(op *store.Op) (store.Outcome, error) {
	if !isStorable(op) {
		if d := store.Decide(store.View{Head: t.head}, op); d.Outcome.Result == store.Invalid {
			return d.Outcome, nil
		}
		return store.Outcome{Result: store.Invalid, Detail: "a name is not valid UTF-8", Head: t.head}, nil
	}
	v, err := store.Look(t, t.headOf(), op)
	if err != nil {
		return store.Outcome{}, err
	}
	d := store.Admit(t.use, op, store.Decide(v, op))
	for c := range d.Uses() {
		t.use.Add(c)
	}
	if w := d.Bookmark; w != nil {
		t.bookmarks[w.Name] = w.New
	}
	waited := t.waited(op.Key)
	for i := range d.Writes {
		t.put(&d.Writes[i], op.Event, waited)
	}
	if n := len(d.Changes); n > 0 {
		t.head = d.Changes[n-1].Revision
	}
	t.writes = append(t.writes, d.Writes...)
	t.changes = append(t.changes, d.Changes...)
	return d.Outcome, nil
}

// headOf returns the head after the ops so far, in the incarnation that the commit begins, or in the present one.
func (t *transaction) headOf() store.Head {
	h := t.memory.state.At
	for _, i := range t.incarnations {
		h.Incarnation, h.FirstRevision = i.ID, i.First
	}
	h.Revision = t.head
	return h
}

// waited returns the event of the spec that is queued behind k, nil if there is none.
func (t *transaction) waited(k store.Key) []byte {
	if event, ok := t.payloads[payloadKey{k, value.Queued}]; ok {
		return event
	}
	return t.queued[k]
}

// put writes one record with its payloads.
func (t *transaction) put(w *store.Write, event, waited []byte) {
	if !t.written[w.Key] {
		t.written[w.Key] = true
		t.touched = append(t.touched, w.Key)
	}
	t.index(t.metas[w.Key], w.New)
	t.metas[w.Key] = w.New
	kinds := [...]byte{value.Spec, value.Status, value.Queued}
	for i, from := range [len(kinds)]store.Payload{w.Spec, w.Status, w.Queued} {
		if w.New == nil {
			from = store.Clear
		}
		k := payloadKey{w.Key, kinds[i]}
		switch from {
		case store.Keep:
		case store.Clear:
			t.payloads[k] = nil
		case store.FromOp:
			t.payloads[k] = event
		case store.FromQueued:
			t.payloads[k] = waited
		}
	}
}
