package postgres

import (
	"github.com/jackc/pgx/v5"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/value"
	"github.com/hawser-io/hawser/pkg/codec"
)

// reads are the records that a batch needs, by key.
type reads struct {
	metas  map[store.Key]*store.Meta // nil: there is none
	queued map[store.Key][]byte      // the events queued behind them
}

// selectRecords reads what a batch needs. It finds the records of its keys, those that have its names, and those
// behind which its ids are queued. It also reads the records of the ids that are queued behind all these.
const selectRecords = `
WITH op AS (
	SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS op (data_type, cluster, resource_id, name)
), found AS (
	SELECT r.data_type, r.cluster, r.resource_id, r.queued_id FROM op JOIN hawser.record r USING (data_type, cluster, resource_id)
	UNION SELECT r.data_type, r.cluster, r.resource_id, r.queued_id FROM op JOIN hawser.record r USING (data_type, cluster, name)
	UNION SELECT r.data_type, r.cluster, r.resource_id, r.queued_id FROM op JOIN hawser.record r
		ON r.data_type = op.data_type AND r.cluster = op.cluster AND r.queued_name = op.name
	UNION SELECT r.data_type, r.cluster, r.resource_id, r.queued_id FROM op JOIN hawser.record r
		ON r.data_type = op.data_type AND r.cluster = op.cluster AND r.queued_id = op.resource_id
), needed AS (
	SELECT data_type, cluster, resource_id FROM found
	UNION SELECT data_type, cluster, queued_id FROM found WHERE queued_id IS NOT NULL
)
SELECT r.data_type, r.cluster, r.resource_id, r.meta, p.event
FROM needed JOIN hawser.record r USING (data_type, cluster, resource_id)
LEFT JOIN hawser.payload p ON p.data_type = r.data_type AND p.cluster = r.cluster AND p.resource_id = r.resource_id AND p.kind = 'w'`

// keyColumns returns the columns of keys, as arrays for unnest.
func keyColumns(keys []store.Key) []any {
	types, clusters, ids := make([]string, len(keys)), make([]string, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		types[i], clusters[i], ids[i] = k.DataType.String(), k.Cluster, k.ResourceID
	}
	return []any{types, clusters, ids}
}

// opColumns returns the parameters of selectRecords for the ops of a batch that are about records and can be stored.
func opColumns(ops []store.Op) (keys []store.Key, args []any) {
	var names []string
	for i := range ops {
		if isOfRecord(&ops[i]) && isStorable(&ops[i]) {
			keys = append(keys, ops[i].Key)
			names = append(names, ops[i].SpecName())
		}
	}
	return keys, append(keyColumns(keys), names)
}

// readRecords reads the result of selectRecords.
func readRecords(rows pgx.Rows, keys []store.Key) (*reads, error) {
	r := &reads{metas: make(map[store.Key]*store.Meta, len(keys)), queued: make(map[store.Key][]byte)}
	for _, k := range keys {
		r.metas[k] = nil
	}
	for rows.Next() {
		m, event, err := scanRecord(rows)
		if err != nil {
			return nil, err
		}
		r.metas[m.Key] = m
		if id := store.QueuedID(m); id != "" {
			if other := m.Key.Beside(id); r.metas[other] == nil {
				r.metas[other] = nil // it is known that there is none, unless a later row has it
			}
		}
		if event != nil {
			r.queued[m.Key] = event
		}
	}
	return r, rows.Err()
}

// scanRecord reads one row: key, meta, and the event of the queued spec.
func scanRecord(row pgx.CollectableRow) (m *store.Meta, event []byte, err error) {
	var dataType string
	var k store.Key
	var sealed []byte
	if err := row.Scan(&dataType, &k.Cluster, &k.ResourceID, &sealed, &event); err != nil {
		return nil, nil, err
	}
	if m, err = metaOf(dataType, k, sealed); err == nil && event != nil {
		event, err = value.Unseal(value.Key(value.Queued, m.Key), event)
	}
	return m, event, err
}

// metaOf returns the record of a row.
func metaOf(dataType string, k store.Key, sealed []byte) (m *store.Meta, err error) {
	if k.DataType, err = dataTypeOf(dataType); err != nil {
		return nil, err
	}
	key := value.Key(value.Meta, k)
	body, err := value.Unseal(key, sealed)
	if err != nil {
		return nil, err
	}
	return value.DecodeMeta(k, key, body)
}

func dataTypeOf(s string) (codec.DataType, error) {
	dt, err := codec.ParseDataType(s)
	if err != nil {
		return dt, value.Damage([]byte("t"+s), err.Error())
	}
	return dt, nil
}
