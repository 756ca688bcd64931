package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/internal/broker/store"
	"github.com/hawser-io/hawser/internal/hubsource/core"
	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/codec/manifestwork"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Every object of a work is a ConfigMap. Its name shows which work it may belong to. Its data shows which
// version of which work made it. Objects named shared-… are in several works, always with the same content.
const (
	ownObjects    = 3
	sharedObjects = 2
)

// manifests returns the manifests of a work. bits choose the objects.
func manifests(work, prefix string, version int64, bits uint32) []workv1.Manifest {
	var list []workv1.Manifest
	add := func(name string, data map[string]string) {
		raw, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]string{"name": name, "namespace": "default"}, "data": data,
		})
		if err != nil {
			panic(err)
		}
		list = append(list, workv1.Manifest{RawExtension: runtime.RawExtension{Raw: raw}})
	}
	own := 1 + bits%(1<<ownObjects-1)
	for i := range ownObjects {
		if own>>i&1 == 1 {
			add(fmt.Sprintf("%s-%d", prefix, i), map[string]string{"work": work, "version": strconv.FormatInt(version, 10)})
		}
	}
	for i := range sharedObjects {
		if bits>>(8+2*i)&3 == 0 {
			add(fmt.Sprintf("shared-%d", i), map[string]string{"shared": "yes"})
		}
	}
	return list
}

// otherOption returns Orphan if there is no delete option, and none otherwise.
func otherOption(o *workv1.DeleteOption) *workv1.DeleteOption {
	if o != nil {
		return nil
	}
	return &workv1.DeleteOption{PropagationPolicy: workv1.DeletePropagationPolicyTypeOrphan}
}

func orphans(o *workv1.DeleteOption) bool {
	return o != nil && o.PropagationPolicy == workv1.DeletePropagationPolicyTypeOrphan
}

func objectsOf(list []workv1.Manifest) map[string]map[string]string {
	objects := map[string]map[string]string{}
	for _, m := range list {
		var o struct {
			Metadata struct{ Name string }
			Data     map[string]string
		}
		if err := json.Unmarshal(m.Raw, &o); err != nil {
			panic(err)
		}
		objects[o.Metadata.Name] = o.Data
	}
	return objects
}

// oracle records what happened and judges it. It shares no decision code with the product.
type oracle struct {
	w *world

	gone      map[string]bool // ids that their sources deleted, and did not create again
	everGone  map[string]bool
	dead      map[string]bool // by root of the epoch, as in the data of objects
	ended     map[string]bool // ids that left a hub after their clusters had cleaned up
	missing   map[string]bool // ids that left a hub, because it was restored or the finalizer was removed
	mayStay   map[string]bool // epochs that were Orphan at some time
	mustStay  map[string]bool // epochs that were Orphan when they were deleted
	released  map[string]bool // clusters that were unselected at some time
	evictable map[string]bool // ids without a work on the hub since their clusters were served; a release does not stop their eviction
	dropped   map[string]bool // ids whose record was dropped by a release when the hub no longer had them

	notified   map[string]bool   // by cluster and id: its agent was sent the deletion
	forwarded  map[string]bool   // ids whose names were taken over
	confirmed  map[string]bool   // ids whose clusters confirmed the deletion
	successors map[string]string // by id of a deleted work: the id that took over its name

	kept    map[string]bool   // committed events
	where   map[string]string // by id: the cluster whose agent reported
	speaker map[string]string // by cluster name: the uid of the cluster that connected last
	usurped map[string]bool   // cluster names under which a replaced cluster connected since the store was lost
	taken   map[string]bool   // by id of the event: whether the broker had to accept it on arrival

	keeps map[string]bool // clusters behind a stateless broker on which there may be works that a hub lost

	forgot bool // the broker's store was lost, or an older one taken
	unmanned

	clusters map[string]*truth
	former   []*truth // of clusters that were replaced

	sequences map[string]string // by cluster: the highest sequence id that its agents used

	reports map[string][]string // by id: hashes of the statuses that agents sent
	settled map[string]int      // by id: the number of statuses up to the last committed one
	shown   map[string]int      // by id: position in reports of what the hub shows

	answered map[string]int64 // by id: the newest generation that agents have reported
}

// truth is the known state of one cluster.
type truth struct {
	wanted  map[string]*wanted // by id
	seen    map[string]bool    // "epoch version" that was delivered
	made    map[string]bool    // "epoch version" of which the cluster had an object
	epoch   map[string]int     // by "object root": the latest epoch for which it was made
	objects map[string]object
	highest map[string]int64 // by "object epoch"
	// timeless are epochs of which older versions may come back.
	timeless map[string]bool
	// sharedMayStay: some work on the cluster was Orphan at some time.
	sharedMayStay bool
}

// wanted is the latest delivered spec of a work.
type wanted struct {
	name    string
	epoch   string
	live    bool
	orphan  bool // and the process that received that option still runs
	objects map[string]map[string]string
}

type object struct {
	data   map[string]string
	owners []string // names of works
}

func newOracle(w *world) *oracle {
	return &oracle{
		w: w, gone: map[string]bool{}, everGone: map[string]bool{}, dead: map[string]bool{}, ended: map[string]bool{}, missing: map[string]bool{}, mayStay: map[string]bool{}, mustStay: map[string]bool{},
		notified: map[string]bool{}, successors: map[string]string{}, forwarded: map[string]bool{}, confirmed: map[string]bool{}, released: map[string]bool{}, keeps: map[string]bool{}, evictable: map[string]bool{}, dropped: map[string]bool{}, kept: map[string]bool{}, where: map[string]string{}, clusters: map[string]*truth{},
		speaker: map[string]string{}, usurped: map[string]bool{}, taken: map[string]bool{}, sequences: map[string]string{}, unmanned: unmanned{started: map[string]bool{}, elsewhere: map[string]bool{}},
		reports: map[string][]string{}, settled: map[string]int{}, shown: map[string]int{}, answered: map[string]int64{},
	}
}

// deletedAtSource records a deletion. w is the last version before it.
func (o *oracle) deletedAtSource(epoch string, w *workv1.ManifestWork) {
	id := string(w.UID)
	again := strings.HasPrefix(id, "hub-") && o.everGone[id] // a deletion from before a restore may be under way
	o.gone[id], o.everGone[id] = true, true
	o.dead[root(epoch)], o.mustStay[root(epoch)] = true, orphans(w.Spec.DeleteOption) && !again
}

// root returns the key of an epoch where the oracle records its end. A hub's work has one epoch more after each
// restore of the hub, and all of them end together.
func root(epoch string) string {
	if strings.HasPrefix(epoch, "hub-") {
		epoch, _, _ = strings.Cut(epoch, "#")
	}
	return epoch
}

// epochOf splits the identification of an epoch. Works that are created again under their id have several
// epochs, and so have works of a restored hub.
func epochOf(work string) (first string, epoch int) {
	first, n, _ := strings.Cut(work, "#")
	epoch, _ = strconv.Atoi(n)
	return first, epoch
}

// approved records that an operator approved the deletion of a work that its hub lacks.
func (o *oracle) approved(id string) {
	o.gone[id], o.everGone[id], o.dead[id] = true, true, true
}

// option records that a work gets another delete option.
func (o *oracle) option(epoch string, w *workv1.ManifestWork) {
	epoch = root(epoch)
	o.mayStay[epoch] = o.mayStay[epoch] || orphans(w.Spec.DeleteOption)
	if o.mayStay[epoch] {
		o.clusters[w.Namespace].sharedMayStay = true
	}
}

func (o *oracle) bornAtSource(id string) {
	o.gone[id] = false
}

// sent records each publish of a client.
func (o *oracle) sent(l *link, e codec.Event) {
	env := envelope(e)
	l.spoke, _ = e.Extensions()[codec.ExtSession].(string)
	switch {
	case env.Type.Action == codec.ResyncRequest || env.RawType == codec.TypeRelease || env.RawType == codec.TypeAck ||
		env.RawType == codec.TypeKeepalive || env.RawType == codec.TypeGoodbye:
	case l.id.Role == identity.Source || o.quarantined(l):
	default:
		if r, err := core.ReportOf(e); err == nil {
			o.reports[env.ResourceID] = append(o.reports[env.ResourceID], statusHash(r.Status))
			for _, c := range r.Status.Conditions {
				o.answered[env.ResourceID] = max(o.answered[env.ResourceID], c.ObservedGeneration)
			}
			o.where[env.ResourceID] = env.Cluster
			if above(o.sequences[env.Cluster], env.SequenceID) {
				o.sequences[env.Cluster] = env.SequenceID
			}
		}
	}
}

// above reports whether a sequence id is newer than another.
func above(than, id string) bool {
	newer, err := codec.CompareSequence(than, id)
	if err != nil {
		panic(err)
	}
	return newer
}

// processEnded records that the agent of a cluster restarts. Its last reports that were not committed are lost
// with it. It sends them again if they are still true.
func (o *oracle) processEnded(a *agentNode) {
	for _, w := range a.link.truth.wanted {
		w.orphan = false
	}
	o.forgetOrphans()
	if o.speaker[a.name] == a.uid && o.w.stateless == nil { // else it may still be in flight
		o.forgetReports(a.name)
	}
}

// forgetReports forgets the reports of a cluster that were not committed.
func (o *oracle) forgetReports(clusterName string) {
	for id := range o.reports {
		if o.where[id] == clusterName {
			o.reports[id] = o.reports[id][:o.settled[id]]
			o.shown[id] = min(o.shown[id], max(0, o.settled[id]-1))
		}
	}
}

// reported records that a status was committed.
func (o *oracle) reported(op *store.Op) {
	e, err := codec.Unmarshal(op.Event)
	if err != nil {
		panic(err)
	}
	r, err := core.ReportOf(e)
	if err != nil {
		panic(err)
	}
	id, hash := op.Key.ResourceID, statusHash(r.Status)
	for i := len(o.reports[id]) - 1; i >= 0; i-- {
		if o.reports[id][i] == hash {
			o.settled[id] = max(o.settled[id], i+1)
			return
		}
	}
	// It is from an earlier process, before the reports of the present one.
	o.reports[id] = slices.Insert(o.reports[id], o.settled[id], hash)
	o.settled[id]++
}

func envelope(e codec.Event) codec.Envelope {
	env, err := codec.ParseEnvelope(marshal(e))
	if err != nil {
		panic(err)
	}
	return env
}

func marshal(e codec.Event) []byte {
	b, err := codec.Marshal(e)
	if err != nil {
		panic(err)
	}
	return b
}

// statusHash identifies a status without the conditions that hub-source and agent add for each other.
func statusHash(s workv1.ManifestWorkStatus) string {
	s.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions), func(c metav1.Condition) bool {
		return c.Type == manifestwork.ConditionDeleted || c.Type == core.ConditionDelivered
	})
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// committed judges one write of the store by the record before and after it.
func (o *oracle) committed(op *store.Op, result store.ResultCode, before, after *store.Meta) {
	id := op.Key.ResourceID
	if result != store.QuotaExceeded && result != store.Fenced {
		o.kept[fmt.Sprint(id, op.Tag, op.Sequence)] = true
	}
	changed := before == nil != (after == nil) || before != nil && *before != *after
	o.deletedAfterLoss(op, after)
	if op.Kind == store.Drop && before != nil && o.w.hub.byID(id) == nil {
		// The hub no longer has the work. Or an older store brought back a work that the hub had deleted, and its
		// cluster was released before that deletion.
		o.unknown(op.Key.Cluster, id)
		o.dropped[id] = true
		o.forgetOrphans()
	}
	if changed && op.Kind == store.TakeOver {
		o.takenOver(op, before)
	}
	if changed && before == nil && after.State == store.Live {
		o.takesName(op)
	}
	if changed && before == nil && after.State == store.Live && o.ended[id] {
		o.w.fail("I2", "work %s has left the hub, and is delivered once more", id)
	}
	if !changed || before == nil {
		return
	}
	if op.Kind == store.PutStatus {
		o.speaks(op)
		o.confirmed[id] = o.confirmed[id] || op.Deleted && (after == nil || after.State == store.ConfirmedTombstone)
		o.confirmedByFormer(op)
	}
	if op.Kind == store.PutStatus && after != nil && before.StatusRevision != after.StatusRevision && len(op.Event) > 0 {
		o.reported(op)
	}
	if op.Kind == store.PutSpec && before.Owner != op.Owner && before.State != store.ConfirmedTombstone {
		o.w.fail("I8", "source %s changed work %s of source %s", op.Owner, id, before.Owner)
	}
	switch {
	case after == nil || after.State == store.ConfirmedTombstone:
		if before.State == store.Live && op.Kind != store.Drop && !(op.Kind == store.PutSpec && op.Deleting) {
			o.w.fail("I3", "work %s, which its source did not delete, was taken as deleted", id)
		}
	case after.State == store.Tombstone && before.State != store.Tombstone:
		if op.Kind != store.PutSpec || !op.Deleting || !o.everGone[id] {
			o.w.fail("I3", "work %s became a tombstone although its source did not delete it", id)
		}
	}
	if after == nil || before.State != after.State {
		return
	}
	newer, err := codec.CompareSequence(before.Sequence, after.Sequence)
	switch {
	case op.Kind == store.PutSpec && !op.Deleting && after.Version < before.Version && op.Supersedes == 0: // a deletion may have no version
		o.w.fail("I2", "version %d of work %s replaced version %d", after.Version, id, before.Version)
	case op.Kind == store.PutStatus && after.StatusRevision != before.StatusRevision && (err != nil || !newer):
		o.w.fail("I2", "status %s of work %s replaced status %s", after.Sequence, id, before.Sequence)
	}
}

// acknowledged judges a successful receipt: what it acknowledges must be committed.
func (o *oracle) acknowledged(c *call, r transport.Receipt) {
	env, err := codec.ParseEnvelope(c.bytes)
	if err != nil || env.Type.Action == codec.ResyncRequest || env.Type.DataType != codec.ManifestBundles {
		return
	}
	if env.Type.Subresource == codec.Status && r.Outcome == codec.OutcomeIgnored {
		return // there is no record of its work, so there is nothing to keep
	}
	tag := codec.Tag{}
	if env.Type.Subresource == codec.Spec {
		tag = codec.TagOf(env.Deleting, env.Version, env.RawMetadata, env.Data)
	}
	if !o.kept[fmt.Sprint(env.ResourceID, tag, env.SequenceID)] {
		o.w.fail("I7", "%s of work %s was acknowledged (%s) and not committed", c.what, env.ResourceID, r.Outcome)
	}
}

// received judges an event that a client receives.
func (o *oracle) received(l *link, env *codec.Envelope, e codec.Event) {
	to := l.id
	if env.Type == (codec.EventType{}) { // about the subscription itself
		return
	}
	if to.Role == identity.Source && env.Type.Action == codec.ResyncRequest {
		return
	}
	if to.Role == identity.Source {
		if strings.HasPrefix(env.ResourceID, "hub-") != (to.Name == hubName) {
			o.w.fail("I8", "%s was sent a status of work %s", to, env.ResourceID)
		}
		return
	}
	if env.Cluster != to.Name {
		o.w.fail("I8", "%s was sent an event for cluster %s", to, env.Cluster)
		return
	}
	if env.Type.Subresource == codec.Spec && l.counts(e) {
		o.want(l.truth, env, e)
	}
}

func (o *oracle) want(t *truth, env *codec.Envelope, e codec.Event) {
	spec, err := manifestwork.DecodeSpec(e)
	if err != nil {
		o.w.fail("I1", "%s was sent a work that cannot be used: %v", env.Cluster, err)
		return
	}
	if spec.Deleting {
		if !o.everGone[spec.ResourceID] {
			o.w.fail("I3", "%s was sent a deletion of work %s, which is not deleted", env.Cluster, spec.ResourceID)
		}
		o.notified[env.Cluster+"/"+spec.ResourceID] = true
		if w := t.wanted[spec.ResourceID]; w != nil {
			w.live = false
		}
		return
	}
	delete(o.notified, env.Cluster+"/"+spec.ResourceID) // a restored hub has it again
	w := &wanted{name: spec.Name, live: true, orphan: orphans(spec.Work.Spec.DeleteOption), objects: objectsOf(spec.Work.Spec.Workload.Manifests)}
	for id, other := range t.wanted {
		if id != spec.ResourceID && other.name == spec.Name {
			delete(t.wanted, id) // a new id under a live name replaces the work
		}
	}
	t.wanted[spec.ResourceID] = w
	for _, data := range w.objects {
		if data["work"] != "" {
			w.epoch = data["work"]
			t.seen[data["work"]+" "+data["version"]] = true
		}
	}
}

// newCluster creates a cluster. The oracle judges each change on it.
func (w *world) newCluster(name string) *clustertest.Fake {
	f := clustertest.New()
	t := &truth{wanted: map[string]*wanted{}, seen: map[string]bool{}, made: map[string]bool{}, epoch: map[string]int{}, objects: map[string]object{}, highest: map[string]int64{}, timeless: map[string]bool{}}
	if before := w.oracle.clusters[name]; before != nil {
		t.timeless, t.sharedMayStay = before.timeless, before.sharedMayStay
		w.oracle.former = append(w.oracle.former, before)
	}
	w.oracle.clusters[name] = t
	w.fakes[name] = f
	f.Put(clustertest.Object("v1", "ConfigMap", "default", "bystander", "data", map[string]any{"mine": "yes"}))
	f.Changed = func(ref kubeclient.Ref, o *unstructured.Unstructured) {
		if ref.Resource == "configmaps" {
			w.oracle.changed(name, t, ref.Name, o)
		}
	}
	return f
}

func (o *oracle) changed(where string, t *truth, name string, now *unstructured.Unstructured) {
	if name == "bystander" {
		o.w.fail("I8", "%s: an object that belongs to no work was changed", where)
		return
	}
	old := t.objects[name]
	judge := !o.w.others // other users of the cluster may do anything
	if now == nil || now.GetDeletionTimestamp() != nil {
		delete(t.objects, name)
		if judge {
			o.removed(where, t, name, old)
		}
		return
	}
	data, _, _ := unstructured.NestedStringMap(now.Object, "data")
	t.made[data["work"]+" "+data["version"]] = true
	t.objects[name] = object{data: data, owners: ownersOf(now)}
	if data["work"] == "" || !judge {
		return
	}
	version, _ := strconv.ParseInt(data["version"], 10, 64)
	key := name + " " + data["work"]
	switch {
	case !t.seen[data["work"]+" "+data["version"]]:
		o.w.fail("I8", "%s: %s was made for version %d of %s, which was never delivered", where, name, version, data["work"])
	case version < t.highest[key] && !t.timeless[data["work"]]:
		o.w.fail("I2", "%s: %s went from version %d of %s back to %d", where, name, t.highest[key], data["work"], version)
	}
	t.highest[key] = max(version, t.highest[key])
	first, epoch := epochOf(data["work"])
	if latest := t.epoch[name+" "+first]; epoch < latest && !t.timeless[data["work"]] {
		o.w.fail("I2", "%s: %s went from life %d of %s back to %d", where, name, latest, first, epoch)
	}
	t.epoch[name+" "+first] = max(epoch, t.epoch[name+" "+first])
}

// removed judges that an object was deleted on a cluster.
func (o *oracle) removed(where string, t *truth, name string, old object) {
	if epoch := old.data["work"]; epoch != "" && o.dead[root(epoch)] {
		if o.mustStay[root(epoch)] {
			o.removedOrphan(where, t, name, epoch)
		}
		o.removedOfTheNext(where, t, name, root(epoch))
		return
	}
	for id, w := range t.wanted {
		if !w.live || w.objects[name] == nil || o.abandoned(where, id) || o.withoutAgain(where, t, id, name) {
			continue
		}
		// A work that does not own a shared object yet creates it again.
		if old.data["work"] != "" || slices.Contains(old.owners, w.name) && !o.w.ocmAgent.hasBefore(where, w.name, id) {
			o.w.fail("I3", "%s: %s was deleted, and work %s (%s) wants it", where, name, w.name, id)
		}
	}
}

// abandoned reports whether no component has a work: not the hub, the shop or the broker. A release alone is no
// reason to delete its objects. A work is abandoned too if a restored hub has it again after its deletion. Its
// objects are deleted and created again.
func (o *oracle) abandoned(where, id string) bool {
	if o.everGone[id] && o.w.hub.epoch > 0 {
		return true
	}
	if o.w.hub.byID(id) != nil {
		return false
	}
	for _, s := range o.w.shop.works {
		if string(s.o.UID) == id {
			return false
		}
	}
	r := o.record(where, id)
	return (r == nil || r.State == store.ConfirmedTombstone) && (o.w.source.selected[where] || o.evictable[id])
}

// removedOrphan judges the removal of an object whose work was Orphan when the work was deleted. Only an
// earlier spec without the object may remove it. After a replaced cluster confirmed the deletion, the removal
// is allowed too: a confirmed tombstone has no delete options.
func (o *oracle) removedOrphan(where string, t *truth, name, epoch string) {
	if o.usurped[where] {
		return
	}
	for id, w := range t.wanted {
		if root(w.epoch) == root(epoch) && (!w.live || w.objects[name] != nil) {
			o.w.fail("I3", "%s: %s was deleted with work %s (%s), which is Orphan", where, name, w.name, id)
		}
	}
}

func ownersOf(o *unstructured.Unstructured) []string {
	var owners []string
	for _, r := range o.GetOwnerReferences() {
		owners = append(owners, strings.TrimPrefix(r.Name, hubHash+"-"))
	}
	if list := o.GetAnnotations()["owners"]; list != "" {
		owners = append(owners, strings.Split(list, ",")...)
	}
	return owners
}

// orphansThere reports whether the spec of a record is Orphan.
func (o *oracle) orphansThere(k store.Key) bool {
	r := o.record(k.Cluster, k.ResourceID)
	if r == nil || r.Spec == nil {
		return false
	}
	e, err := codec.Unmarshal(r.Spec)
	if err != nil {
		panic(err)
	}
	spec, err := manifestwork.DecodeSpec(e)
	return err == nil && orphans(spec.Work.Spec.DeleteOption)
}

// record returns a record of the store, nil when there is none.
func (o *oracle) record(clusterName, id string) *store.Record {
	r, err := o.w.store().Get(context.Background(), store.Key{DataType: codec.ManifestBundles, Cluster: clusterName, ResourceID: id})
	if err != nil {
		return nil
	}
	return &r
}
