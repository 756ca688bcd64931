-- Text is compared bytewise, so that keys sort as in the other engines.
CREATE TABLE hawser.store (
	single boolean PRIMARY KEY DEFAULT true CHECK (single),
	id text NOT NULL,
	compacted bigint NOT NULL DEFAULT 0 -- revision of the last removal that was deleted
);

-- The openings of the database that cursors may name. "database" is the identity that the first commit read.
CREATE TABLE hawser.incarnation (
	number bigint PRIMARY KEY,
	id text NOT NULL,
	first bigint NOT NULL,
	database text NOT NULL
);

-- One row per commit, in order. Its last row is the head of the store: each commit reads it under the lock, and
-- only appends. "token" tells two histories of the same numbers apart. "entries" is what the commit changed;
-- replicas apply it to their memory. Rows that all replicas have applied are deleted from the low end.
CREATE TABLE hawser.log (
	number bigint PRIMARY KEY,
	token bigint NOT NULL,
	head bigint NOT NULL,
	entries bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
	toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_cost_delay = 0);
ALTER TABLE hawser.log ALTER entries SET STORAGE EXTERNAL; -- a row lives for seconds: too short to be compressed

-- The records without payloads. "meta" is the record; the other columns repeat what it is found by. A status or
-- a spec changes only "meta", so the new row stays in its page and no index is written. The index of names begins with
-- the name: a plan that was made for the empty table would search a key by type and cluster in it, among all works.
CREATE TABLE hawser.record (
	data_type text COLLATE "C" NOT NULL,
	cluster text COLLATE "C" NOT NULL,
	resource_id text COLLATE "C" NOT NULL,
	owner text COLLATE "C" NOT NULL,
	name text COLLATE "C",          -- null: a confirmed tombstone has no name
	queued_id text COLLATE "C",     -- of the spec queued behind the record, if it is another id
	queued_name text COLLATE "C",   -- of the queued spec, if it is another name
	meta bytea NOT NULL,
	PRIMARY KEY (data_type, cluster, resource_id),
	UNIQUE (name, data_type, cluster) DEFERRABLE INITIALLY DEFERRED
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
	autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX record_owner ON hawser.record (owner, data_type, cluster, resource_id);
CREATE INDEX record_queued_id ON hawser.record (data_type, cluster, queued_id) WHERE queued_id IS NOT NULL;
CREATE INDEX record_queued_name ON hawser.record (data_type, cluster, queued_name) WHERE queued_name IS NOT NULL;

-- The payloads of the records: spec (s), status (t), and the event of the queued spec (w). One of up to 8 KB stays in
-- its row, not compressed, so that a new version is one new row and not several chunks.
CREATE TABLE hawser.payload (
	data_type text COLLATE "C" NOT NULL,
	cluster text COLLATE "C" NOT NULL,
	resource_id text COLLATE "C" NOT NULL,
	kind text COLLATE "C" NOT NULL,
	event bytea NOT NULL,
	PRIMARY KEY (data_type, cluster, resource_id, kind)
) WITH (toast_tuple_target = 8160, fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
	toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_cost_delay = 0);

-- The change feed: the last change of each part of a record.
CREATE TABLE hawser.change (
	revision bigint PRIMARY KEY,
	part smallint NOT NULL,
	state smallint NOT NULL,
	data_type text COLLATE "C" NOT NULL,
	cluster text COLLATE "C" NOT NULL,
	resource_id text COLLATE "C" NOT NULL,
	owner text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0,
	autovacuum_analyze_scale_factor = 0.05);

-- The removals in the change feed. They stay until all replicas have passed them.
CREATE TABLE hawser.removal (
	revision bigint PRIMARY KEY,
	change bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The bookmarks and the bindings of cluster names. Each is also in the change feed, under its revision.
CREATE TABLE hawser.bookmark (
	name bytea PRIMARY KEY,
	revision bigint NOT NULL UNIQUE,
	bookmark bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- The replicas that use the store: the last row of the log that each has applied, and the revision up to which it
-- needs no removal.
CREATE TABLE hawser.replica (
	id text PRIMARY KEY,
	position bigint NOT NULL,
	passed bigint NOT NULL,
	seen timestamptz NOT NULL
);
