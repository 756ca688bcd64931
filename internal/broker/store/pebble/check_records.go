package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/hawser-io/hawser/internal/broker/store"
)

// records reads all metas with what belongs to them: the payloads, which have
// the same keys but for the kind and so are read side by side, and what finds
// them.
func (c *checker) records(ctx context.Context) (err error) {
	var beside [3]*companion
	for i, kind := range []byte{keySpec, keyStatus, keyWaiting} {
		beside[i] = c.companion(kind)
		defer func() { err = errors.Join(err, beside[i].close()) }()
	}
	payloads := func(key []byte) (there [3]presence, err error) {
		for i, p := range beside {
			if there[i], err = p.at(ctx, key[1:]); err != nil {
				return there, err
			}
		}
		return there, nil
	}
	err = c.walk(ctx, []byte{keyMeta}, func(key, body []byte) error {
		there, err := payloads(key)
		if err != nil {
			return err
		}
		return c.record(key, body, there)
	}, func(key []byte) error {
		c.unreadable[string(key[1:])] = true
		_, err := payloads(key)
		return err
	})
	if err != nil {
		return err
	}
	for _, p := range beside {
		if err := p.rest(ctx); err != nil {
			return err
		}
	}
	return nil
}

// presence of a payload; unsure where the disk does not say.
type presence uint8

const (
	absent presence = iota
	present
	unsure
)

// companion reads one kind of payload beside the metas.
type companion struct {
	c      *checker
	kind   byte
	it     *engine.Iterator // nil: cannot be read
	broken bool
}

func (c *checker) companion(kind byte) *companion {
	p := &companion{c: c, kind: kind}
	it, err := c.db.NewIter(&engine.IterOptions{LowerBound: []byte{kind}, UpperBound: []byte{kind + 1}})
	if err != nil {
		c.add(store.DamageError{Key: printable([]byte{kind}), What: err.Error()})
		p.broken = true
		return p
	}
	p.it = it
	it.First()
	return p
}

func (p *companion) close() error {
	if p.it == nil {
		return nil
	}
	return p.c.note([]byte{p.kind}, p.it.Close())
}

// at reads up to the payload of one record; what is before belongs to none.
func (p *companion) at(ctx context.Context, record []byte) (presence, error) {
	if err := p.orphans(ctx, record); err != nil {
		return unsure, err
	}
	switch {
	case p.broken:
		return unsure, nil
	case !p.it.Valid() || !bytes.Equal(p.it.Key()[1:], record):
		return absent, nil
	}
	_, err := p.c.value(p.it)
	if err := p.c.note(p.it.Key(), err); err != nil {
		return unsure, err
	}
	p.it.Next()
	return present, nil
}

// rest is for the end of the metas.
func (p *companion) rest(ctx context.Context) error {
	if p.c.cut {
		return nil
	}
	return p.orphans(ctx, nil)
}

// orphans reads what is before a record, or to the end.
func (p *companion) orphans(ctx context.Context, record []byte) error {
	if p.broken {
		return nil
	}
	for ; p.it.Valid() && (record == nil || bytes.Compare(p.it.Key()[1:], record) < 0); p.it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := p.c.value(p.it)
		if err == nil {
			err = damage(p.it.Key(), "there is no record for it")
		}
		if err := p.c.note(p.it.Key(), err); err != nil {
			return err
		}
	}
	if err := p.it.Error(); err != nil {
		p.broken = true
		return p.c.note([]byte{p.kind}, err)
	}
	return nil
}

// record checks one.
func (c *checker) record(key, body []byte, payloads [3]presence) error {
	k, err := parseRecordKey(key)
	if err != nil {
		return err
	}
	m, err := decodeMeta(k, body)
	if err != nil {
		c.unreadable[string(key[1:])] = true
		return damage(key, err.Error())
	}
	c.count(m)
	c.tally.Load(m)
	problems := append(c.form(m), payloadForm(m, payloads)...)
	for _, p := range problems {
		c.add(store.DamageError{Key: printable(key), What: p})
	}
	for _, look := range []func(*store.Meta) error{c.namedBy, c.ownedBy, c.inFeed, c.waiting} {
		if err := c.note(key, look(m)); err != nil {
			return err
		}
	}
	return nil
}

// count adds a record to the report. Those of one place follow each other.
func (c *checker) count(m *store.Meta) {
	n := len(c.report.Clusters)
	if n == 0 || c.report.Clusters[n-1].DataType != m.DataType || c.report.Clusters[n-1].Cluster != m.Cluster {
		c.report.Clusters = append(c.report.Clusters, ClusterReport{DataType: m.DataType, Cluster: m.Cluster})
		n++
	}
	r := &c.report.Clusters[n-1]
	switch m.State {
	case store.Live:
		r.Live++
	case store.Tombstone:
		r.Tombstones++
	case store.Grave:
		r.Graves++
	}
}

// form returns what a meta says that cannot be.
func (c *checker) form(m *store.Meta) []string {
	var out []string
	must := func(ok bool, what string) {
		if !ok {
			out = append(out, what)
		}
	}
	grave := m.State == store.Grave
	must(m.Owner != "" && m.Name != "", "it has no owner or no name")
	must(m.SpecRevision != 0, "it has no revision")
	must(max(m.SpecRevision, m.StatusRevision) <= c.head, fmt.Sprintf(
		"its revisions %d and %d are above the head %d", m.SpecRevision, m.StatusRevision, c.head))
	must(m.State != store.Live || m.DeletedAt.IsZero(), "it is live and has a deletion time")
	must(grave == !m.Buried.IsZero(), "it is a grave without the time of its burial, or the reverse")
	must(!grave || m.StatusRevision != 0, "it is a grave without a final status")
	must(m.Waiting == nil || m.State == store.Tombstone, "something waits behind it, and it is no tombstone")
	must(grave || !m.SpecSupersedes || m.Version <= m.Superseded, "its version is above the one it superseded")
	if w := m.Waiting; w != nil {
		must(w.Owner == m.Owner, "a spec of another owner waits behind it")
		must(w.ResourceID != "" && w.Name != "", "what waits behind it has no id or no name")
		must(w.ResourceID != m.ResourceID || !w.Deleting, "a deletion waits behind its own tombstone")
	}
	return out
}

// payloadForm compares a meta with the payloads that there are.
func payloadForm(m *store.Meta, there [3]presence) []string {
	var out []string
	required := [3]bool{
		m.State == store.Live,
		m.StatusRevision != 0 && m.State != store.Grave,
		m.Waiting != nil && !m.Waiting.Deleting,
	}
	allowed := [3]bool{m.State != store.Grave, m.StatusRevision != 0, m.Waiting != nil}
	for i, what := range []string{"spec", "status", "event of what waits"} {
		switch {
		case required[i] && there[i] == absent:
			out = append(out, "its "+what+" is missing")
		case !allowed[i] && there[i] == present:
			out = append(out, "it can have no "+what+", and there is one")
		}
	}
	return out
}

// namedBy: every name that a record holds leads to it. So names are unique.
func (c *checker) namedBy(m *store.Meta) error {
	for _, name := range store.Holds(m) {
		key := nameKey(m.DataType, m.Cluster, name)
		id, ok, err := c.seek.get(key)
		switch {
		case err != nil:
		case !ok:
			err = damage(key, fmt.Sprintf("it is missing, and %q has the name", m.ResourceID))
		case string(id) != m.ResourceID:
			err = damage(key, fmt.Sprintf("it leads to %q, and %q has the name too", id, m.ResourceID))
		}
		if err := c.note(key, err); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) ownedBy(m *store.Meta) error {
	key := ownerKey(m.Owner, m.Key)
	_, ok, err := c.seek.get(key)
	if err == nil && !ok {
		err = damage(key, "it is missing, but the record is there")
	}
	return err
}

// inFeed: each half leads from its revision back to the record.
func (c *checker) inFeed(m *store.Meta) error {
	spec, status := store.Entries(m)
	for _, h := range []struct {
		part     store.Part
		revision uint64
	}{{store.SpecPart, spec}, {store.StatusPart, status}} {
		if h.revision == 0 {
			continue
		}
		key := numberKey(keyRevision, h.revision)
		body, ok, err := c.seek.get(key)
		if err == nil && !ok {
			err = damage(key, "it is missing, but "+printable(recordKey(keyMeta, m.Key))+" has the revision")
		}
		if err == nil {
			change, derr := decodeChange(h.revision, body)
			if derr != nil || change.Key != m.Key || change.Part != h.part {
				err = damage(key, "it does not lead to "+printable(recordKey(keyMeta, m.Key))+", which has the revision")
			}
		}
		if err := c.note(key, err); err != nil {
			return err
		}
	}
	return nil
}

// waiting: an id waits in one place, and is nowhere else but in its grave.
func (c *checker) waiting(m *store.Meta) error {
	id := store.WaitsBehind(m)
	if id == "" {
		return nil
	}
	key := recordKey(keyMeta, m.Key)
	k := m.Key
	k.ResourceID = id
	if other, ok := c.behind[k]; ok {
		return damage(key, fmt.Sprintf("%q waits behind it, and behind %q too", id, other))
	}
	c.behind[k] = m.ResourceID
	r, err := c.seek.meta(k)
	switch {
	case err != nil:
		return err
	case r != nil && r.State != store.Grave:
		return damage(key, fmt.Sprintf("%q waits behind it, and is there", id))
	case r != nil && r.Owner != m.Owner:
		return damage(key, fmt.Sprintf("%q waits behind it, and its grave is of another owner", id))
	}
	return nil
}

// found returns the record that an index leads to, nil when that cannot be
// read and is known.
func (c *checker) found(key []byte, k store.Key) (*store.Meta, error) {
	meta := recordKey(keyMeta, k)
	if c.unreadable[string(meta[1:])] {
		return nil, nil
	}
	m, err := c.seek.meta(k)
	if err == nil && m == nil {
		err = damage(key, "it leads to "+printable(meta)+", and there is no such record")
	}
	return m, err
}

// names checks that all lead to who holds them.
func (c *checker) names(ctx context.Context) error {
	return c.walk(ctx, []byte{keyName}, func(key, body []byte) error {
		k, err := parseRecordKey(key)
		if err != nil {
			return err
		}
		name := k.ResourceID
		k.ResourceID = string(body)
		m, err := c.found(key, k)
		if err == nil && m != nil && !slices.Contains(store.Holds(m), name) {
			err = damage(key, fmt.Sprintf("it leads to %q, which does not hold the name", body))
		}
		return err
	}, nil)
}

func (c *checker) owners(ctx context.Context) error {
	return c.walk(ctx, []byte{keyOwner}, func(key, _ []byte) error {
		k, err := parseOwnerKey(key)
		if err != nil {
			return err
		}
		m, err := c.found(key, k)
		if err == nil && m != nil && !bytes.Equal(ownerKey(m.Owner, k), key) {
			err = damage(key, fmt.Sprintf("the owner of its record is %q", m.Owner))
		}
		return err
	}, nil)
}

func (c *checker) feed(ctx context.Context) error {
	return c.walk(ctx, []byte{keyRevision}, func(key, body []byte) error {
		revision, err := parseNumberKey(key)
		if err != nil {
			return err
		}
		change, err := decodeChange(revision, body)
		if err != nil {
			return damage(key, err.Error())
		}
		m, err := c.found(key, change.Key)
		if err != nil || m == nil {
			return err
		}
		spec, status := store.Entries(m)
		switch {
		case change.Part == store.SpecPart && (spec != revision || change.State != m.State),
			change.Part == store.StatusPart && status != revision,
			change.Owner != m.Owner:
			return damage(key, fmt.Sprintf("it is not what %s says of itself", printable(recordKey(keyMeta, change.Key))))
		}
		return nil
	}, nil)
}
