package storetest

import (
	"fmt"
	"time"

	"pgregory.net/rapid"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Noon is the time of drawn ops.
var Noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// Draw draws ops that often conflict: few ids, names, owners, versions and contents, in the given clusters.
// revision returns a spec revision for conditions, for example the current one of the key.
func Draw(t *rapid.T, clusters []string, revision func(store.Key) uint64) store.Op {
	pick := func(label string, values ...string) string { return rapid.SampledFrom(values).Draw(t, label) }
	o := store.Op{
		Kind: rapid.SampledFrom([]store.OpKind{
			store.PutSpec, store.PutSpec, store.PutSpec, store.PutSpec, store.PutStatus, store.PutStatus,
			store.CollectTombstone, store.Forget, store.Drop, store.Transfer, store.TakeOver,
		}).Draw(t, "kind"),
		Key: store.Key{
			DataType: codec.ManifestBundles, Cluster: pick("cluster", clusters...), ResourceID: pick("id", "u1", "u2", "u3", "u4"),
		},
		Owner: pick("owner", "s1", "s1", "s1", "s2"),
		At:    Noon,
	}
	switch o.Kind {
	case store.PutSpec:
		drawSpec(t, &o, revision(o.Key))
	case store.PutStatus:
		o.Owner = ""
		o.Version = rapid.Int64Range(0, 4).Draw(t, "version")
		o.Sequence = Sequence(rapid.Int64Range(1, 40).Draw(t, "sequence"))
		o.StatusHash = pick("hash", "h1", "h2")
		o.Failing = rapid.Bool().Draw(t, "failing")
		o.Deleted = rapid.Bool().Draw(t, "deleted")
		o.Event = fmt.Appendf(nil, "status %d %s", o.Version, o.Sequence)
	case store.Forget:
		if rapid.Bool().Draw(t, "final") {
			o.Event = []byte("final")
		}
	case store.TakeOver:
		o.IfRevision = revision(o.Key)
	case store.CollectTombstone, store.Drop, store.Transfer:
	}
	return o
}

func drawSpec(t *rapid.T, o *store.Op, revision uint64) {
	o.Name = rapid.SampledFrom([]string{"n1", "n1", "n2", "u3", ""}).Draw(t, "name")
	o.Action = rapid.SampledFrom([]codec.Action{codec.CreateRequest, codec.UpdateRequest}).Draw(t, "action")
	o.Version = rapid.Int64Range(0, 4).Draw(t, "version")
	content := fmt.Sprintf("%s v%d %s", o.Name, o.Version, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "content"))
	o.Event = []byte(content)
	if o.Deleting = rapid.IntRange(0, 2).Draw(t, "deleting") == 0; o.Deleting {
		o.Action, o.DeletedAt = codec.DeleteRequest, Noon.Add(time.Hour)
		content += " deleted"
		if rapid.Bool().Draw(t, "bare") {
			o.Event = nil
			content += " bare"
		}
	}
	copy(o.Tag[:], codec.TagOf(o.Deleting, o.Version, content, nil).String())
	switch rapid.IntRange(0, 9).Draw(t, "condition") {
	case 0:
		o.Supersedes = revision
	case 1:
		o.IfRevision = revision
	case 2:
		o.Supersedes = revision + 1
	default:
	}
}

// Sequence returns the nth sequence id of an agent, in the form that the codec compares.
func Sequence(n int64) string { return fmt.Sprint(n<<22 | 1<<12) }
