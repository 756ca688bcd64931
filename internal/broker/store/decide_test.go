package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/broker/store/storetest"
	"github.com/hawser-io/hawser/pkg/codec"
)

const cluster = "c1"

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func key(id string) store.Key {
	return store.Key{DataType: codec.ManifestBundles, Cluster: cluster, ResourceID: id}
}

func tag(s string) (t codec.Tag) {
	copy(t[:], s)
	return t
}

// put returns an update_request of source s1 with id, name, version and content.
func put(id, name string, version int64, content string) store.Op {
	return store.Op{
		Kind: store.PutSpec, Key: key(id), Owner: "s1", Name: name, Action: codec.UpdateRequest,
		Version: version, Tag: tag(content), Event: []byte(content), At: noon,
	}
}

// create is put with the action create_request.
func create(id, name string, version int64, content string) store.Op {
	o := put(id, name, version, content)
	o.Action = codec.CreateRequest
	return o
}

// del returns a delete_request without data. Its tag depends only on the version.
func del(id, name string, version int64) store.Op {
	o := put(id, name, version, fmt.Sprintf("del%d", version))
	o.Action, o.Deleting, o.DeletedAt, o.Event = codec.DeleteRequest, true, noon, nil
	return o
}

// delWith is del with data.
func delWith(id, name string, version int64, content string) store.Op {
	o := del(id, name, version)
	o.Tag, o.Event = tag("del"+content), []byte(content)
	return o
}

// seq is a sequence id of an agent.
func seq(n int64) string { return fmt.Sprint(n<<22 | 1<<12) }

func status(id string, version, n int64, content string) store.Op {
	return store.Op{
		Kind: store.PutStatus, Key: key(id), Version: version, Sequence: seq(n), StatusHash: "h" + content,
		Event: []byte(content), At: noon,
	}
}

func deleted(id string, version, n int64) store.Op {
	o := status(id, version, n, fmt.Sprintf("gone%d", version))
	o.Deleted = true
	return o
}

func admin(kind store.OpKind, id, owner string) store.Op {
	return store.Op{Kind: kind, Key: key(id), Owner: owner, At: noon}
}

func by(owner string, o store.Op) store.Op { o.Owner = owner; return o }

// recreate gives a deletion a later deletion timestamp, so that it is another deletion.
func recreate(o store.Op) store.Op { o.DeletedAt = o.DeletedAt.Add(time.Hour); return o }

func beyond(o store.Op) store.Op { o.OutOfScope = true; return o }

func supersedes(revision uint64, o store.Op) store.Op { o.Supersedes = revision; return o }

func ifRevision(revision uint64, o store.Op) store.Op { o.IfRevision = revision; return o }

// row is one line of the tables: the records before, the op, its outcome, and the records after.
type row struct {
	name string
	// noAgentEver is true if no agent of the cluster ever subscribed.
	noAgentEver bool
	before      []store.Op
	// left is true if the cluster is unbound before op, reopened if the store is opened again before op.
	left, reopened bool
	op             store.Op
	want           string   // outcome
	after          []string // records
	feed           []string // changes of op
}

func runRows(t *testing.T, rows []row) {
	t.Helper()
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			l := storetest.NewModel()
			if !r.noAgentEver {
				l.MarkSubscribed(codec.ManifestBundles, cluster, "")
			}
			for i, op := range r.before {
				s, err := l.Apply(op)
				if err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
				if v := s.Outcome.Result; v != store.Accepted && v != store.Queued && v != store.Confirmed {
					t.Fatalf("step %d was not taken: %s", i, outcomeString(s.Outcome))
				}
			}
			if r.left {
				l.UnbindCluster(codec.ManifestBundles, cluster)
			}
			if r.reopened {
				l.Reopen()
			}
			s, err := l.Apply(r.op)
			if err != nil {
				t.Fatal(err)
			}
			if got := outcomeString(s.Outcome); got != r.want {
				t.Errorf("outcome %q, want %q", got, r.want)
			}
			var after []string
			for _, e := range l.Scan(store.Scope{DataType: codec.ManifestBundles}) {
				after = append(after, entryString(e))
			}
			if d := cmp.Diff(r.after, after); d != "" {
				t.Errorf("records (-want +got):\n%s", d)
			}
			var feed []string
			for _, c := range s.Changes {
				feed = append(feed, changeString(c))
			}
			if d := cmp.Diff(r.feed, feed); d != "" {
				t.Errorf("changes (-want +got):\n%s", d)
			}
		})
	}
}

var resultNames = map[store.ResultCode]string{
	store.Accepted: "accepted", store.Confirmed: "confirmed", store.Queued: "queued", store.Unchanged: "unchanged",
	store.Stale: "stale", store.Ignored: "ignored", store.ResendSpec: "specagain", store.OwnedByOther: "ownedbyother",
	store.NameConflict: "nametaken", store.ConditionFailed: "conditionfailed", store.Invalid: "invalid",
	store.Fenced: "fenced",
}

func outcomeString(o store.Outcome) string {
	s := fmt.Sprintf("%s %d %s", resultNames[o.Result], o.Revision, o.Owner)
	if o.Detail != "" {
		s += ": " + o.Detail
	}
	return strings.TrimSpace(s)
}

var states = map[store.State]string{store.Live: "live", store.Tombstone: "tombstone", store.ConfirmedTombstone: "confirmed"}

// entryString is "id state owner/name vN spec@revision [status@revision vN] …".
func entryString(e storetest.Entry) string {
	show := func(b []byte) string {
		if b == nil {
			return "-"
		}
		return string(b)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s/%s v%d %s@%d", e.ResourceID, states[e.State], e.Owner, e.Name, e.Version, show(e.Spec), e.SpecRevision)
	if e.StatusRevision != 0 {
		fmt.Fprintf(&b, " %s@%d v%d", show(e.Status), e.StatusRevision, e.StatusVersion)
	}
	if e.SpecSupersedes {
		fmt.Fprintf(&b, " over v%d", e.Superseded)
	}
	if w := e.Meta.Queued; w != nil {
		kind := "queued"
		if w.Deleting {
			kind = "deletion waits"
		}
		fmt.Fprintf(&b, " (%s: %s %s/%s v%d %s)", kind, w.ResourceID, w.Owner, w.Name, w.Version, show(e.Queued))
	}
	return b.String()
}

func changeString(c store.Change) string {
	part := "spec"
	if c.Part == store.StatusPart {
		part = "status"
	}
	state := states[c.State]
	if c.Gone {
		state = "gone"
	}
	return fmt.Sprintf("%d %s %s %s %s", c.Revision, c.Key.ResourceID, part, c.Owner, state)
}
