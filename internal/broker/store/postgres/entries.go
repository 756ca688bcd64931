package postgres

import (
	"encoding/binary"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/memindex"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/internal/fields"
	"github.com/hawser-io/hawser/pkg/codec"
)

// entries are the effects of one commit, in order. A replica applies them to its memory. They have all that it
// needs of the former records, so that it keeps none of them.
type entries struct {
	writes       []store.Write
	changes      []store.Change // those of bookmarks have the values
	incarnations []incarnation
}

// incarnation is an incarnation with the identity of its database.
type incarnation struct {
	memindex.Incarnation
	number   uint64
	database string
}

func (e *entries) isEmpty() bool {
	return len(e.writes) == 0 && len(e.changes) == 0 && len(e.incarnations) == 0
}

// logKey returns the key of a row of the log, for its checksum and for errors.
func logKey(number uint64) []byte { return value.NumberKey(value.Log, number) }

// Kinds of the fields of encoded entries.
const (
	fieldWrite byte = iota + 1
	fieldChange
	fieldIncarnation
)

// encode returns the encoded entries.
func encode(e *entries) (b []byte) {
	for i := range e.writes {
		b = appendWrite(append(b, fieldWrite), &e.writes[i])
	}
	for i := range e.changes {
		c := &e.changes[i]
		b = fields.AppendBool(binary.AppendUvarint(append(b, fieldChange), c.Revision), c.Gone)
		b = fields.AppendString(value.AppendChange(b, c), string(c.Value))
	}
	for _, i := range e.incarnations {
		b = fields.AppendString(append(b, fieldIncarnation), i.ID)
		b = binary.AppendUvarint(binary.AppendUvarint(b, i.First), i.number)
		b = fields.AppendString(b, i.database)
	}
	return b
}

func appendKey(b []byte, k store.Key) []byte {
	for _, s := range [...]string{k.DataType.Group, k.DataType.Version, k.DataType.Resource, k.Cluster, k.ResourceID} {
		b = fields.AppendString(b, s)
	}
	return b
}

// appendWrite appends a write without its payloads.
func appendWrite(b []byte, w *store.Write) []byte {
	b = appendKey(b, w.Key)
	var body []byte
	for _, m := range []*store.Meta{w.Old, w.New} {
		if body = body[:0]; m != nil {
			body = value.AppendMeta(body, m)
		}
		b = fields.AppendString(b, string(body))
	}
	return b
}

// decodeEntries is the inverse of encode, for the row of the log with a key.
func decodeEntries(key, body []byte) (*entries, error) {
	e := &entries{}
	r := fields.NewReader(body)
	for r.More() {
		switch r.Byte() {
		case fieldWrite:
			w, err := decodeWrite(r, key)
			if err != nil {
				return nil, err
			}
			e.writes = append(e.writes, w)
		case fieldChange:
			e.changes = append(e.changes, decodeChange(r))
		case fieldIncarnation:
			i := incarnation{Incarnation: memindex.Incarnation{ID: r.String(), First: r.Uint64()}, number: r.Uint64()}
			i.database = r.String()
			e.incarnations = append(e.incarnations, i)
		default:
			r.Fail("an entry has an unknown kind")
		}
	}
	return e, value.End(r, key)
}

func decodeKey(r *fields.Reader) (k store.Key) {
	k.DataType = codec.DataType{Group: r.String(), Version: r.String(), Resource: r.String()}
	k.Cluster, k.ResourceID = r.String(), r.String()
	return k
}

func decodeChange(r *fields.Reader) store.Change {
	revision, gone := r.Uint64(), r.Bool()
	c := value.ReadChange(r, gone)
	c.Revision = revision
	if v := r.Next(r.Uint64()); c.Part == store.BookmarkPart && !gone {
		c.Value = append([]byte{}, v...)
	} else if len(v) > 0 {
		r.Fail("only a bookmark has a value")
	}
	return c
}

func decodeWrite(r *fields.Reader, key []byte) (w store.Write, err error) {
	w.Key = decodeKey(r)
	for _, m := range []**store.Meta{&w.Old, &w.New} {
		body := r.Next(r.Uint64())
		if len(body) == 0 {
			continue
		}
		if *m, err = value.DecodeMeta(w.Key, key, body); err != nil {
			return w, err
		}
	}
	return w, nil
}
