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

// Every object of a work is a ConfigMap whose name says whose it may be and
// whose data says which version of which work made it. Objects named shared-…
// are in several works, always with the same content.
const (
	ownObjects    = 3
	sharedObjects = 2
)

// manifests makes what a work wants. bits choose the objects.
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

// otherOption is Orphan for what has no delete option, and none for what has.
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

// oracle knows what happened and says what must not. It uses none of the
// product's decisions.
type oracle struct {
	w *world

	gone      map[string]bool // ids that their sources deleted, and did not create again
	everGone  map[string]bool
	dead      map[string]bool // by root of the life, as in the data of objects
	ended     map[string]bool // ids that left a hub after their clusters had cleaned up
	missing   map[string]bool // ids that left a hub, because it was restored or somebody took the finalizer off
	mayStay   map[string]bool // lives that were Orphan at some time
	mustStay  map[string]bool // lives that were Orphan when they were deleted
	released  map[string]bool // clusters that ever left the selection
	evictable map[string]bool // ids that a hub had lost when their clusters were served again: an eviction may go on when they no longer are
	dropped   map[string]bool // ids whose record went with a release when the hub had them no longer

	notified   map[string]bool   // by cluster and id: its agent was sent the deletion
	forwarded  map[string]bool   // ids whose names were taken over
	confirmed  map[string]bool   // ids whose clusters said that nothing is left
	successors map[string]string // by id that was deleted: the one that took over its name

	kept    map[string]bool   // what was committed
	where   map[string]string // by id: the cluster whose agent reported
	speaker map[string]string // by cluster name: the uid of the one that was heard last
	usurped map[string]bool   // names of clusters under which one that was replaced was heard since the store was lost
	taken   map[string]bool   // by id of the event: whether it was for the broker to take when it came

	keeps map[string]bool // clusters behind a stock broker on which there may be works that a hub lost

	forgot bool // the broker's store was lost, or an older one taken
	unmanned

	clusters map[string]*truth
	former   []*truth // of clusters that were replaced

	sequences map[string]string // by cluster: the highest sequence id that its agents used

	reports map[string][]string // by id: hashes of the statuses that agents sent
	settled map[string]int      // by id: how many of them came before the last that was committed, with that
	shown   map[string]int      // by id: position in reports of what the hub shows

	answered map[string]int64 // by id: the newest generation for which agents said something
}

// truth is what is known of one cluster.
type truth struct {
	wanted  map[string]*wanted // by id
	seen    map[string]bool    // "life version" that was delivered
	made    map[string]bool    // "life version" of which the cluster had an object
	epoch   map[string]int     // by "object root": the latest life for which it was made
	objects map[string]object
	highest map[string]int64 // by "object life"
	// timeless are lives of which older versions may come back.
	timeless map[string]bool
	// sharedMayStay: some work on the cluster was Orphan at some time.
	sharedMayStay bool
}

// wanted is the latest that was delivered of a work.
type wanted struct {
	name    string
	epoch   string
	live    bool
	orphan  bool // and the process that received it so still runs
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

// deletedAtSource hears of a deletion; w is what was wanted last.
func (o *oracle) deletedAtSource(epoch string, w *workv1.ManifestWork) {
	id := string(w.UID)
	again := strings.HasPrefix(id, "hub-") && o.everGone[id] // a deletion from before a restore may be under way
	o.gone[id], o.everGone[id] = true, true
	o.dead[root(epoch)], o.mustStay[root(epoch)] = true, orphans(w.Spec.DeleteOption) && !again
}

// root is what stands for a life where it ends: all lives of a hub's work, which
// is one after each restore of the hub, end together.
func root(epoch string) string {
	if strings.HasPrefix(epoch, "hub-") {
		epoch, _, _ = strings.Cut(epoch, "#")
	}
	return epoch
}

// epochOf takes apart what says which life of a work something is of: works that are
// made anew under their id, and those of a restored hub, have several.
func epochOf(work string) (first string, epoch int) {
	first, n, _ := strings.Cut(work, "#")
	epoch, _ = strconv.Atoi(n)
	return first, epoch
}

// approved hears that an operator lets a work be deleted that its hub lacks.
func (o *oracle) approved(id string) {
	o.gone[id], o.everGone[id], o.dead[id] = true, true, true
}

// option hears that a work has another delete option.
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

// sent hears of every publish of a party.
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

// processEnded hears that the agent of a cluster begins anew. What it said last
// and nobody took is lost with it; it says it again if it is still so.
func (o *oracle) processEnded(a *agentNode) {
	for _, w := range a.link.truth.wanted {
		w.orphan = false
	}
	o.forgetOrphans()
	if o.speaker[a.name] == a.uid && o.w.stateless == nil { // else it may be under way yet
		o.forgetReports(a.name)
	}
}

// forgetReports forgets what was said of a cluster and not taken.
func (o *oracle) forgetReports(clusterName string) {
	for id := range o.reports {
		if o.where[id] == clusterName {
			o.reports[id] = o.reports[id][:o.settled[id]]
			o.shown[id] = min(o.shown[id], max(0, o.settled[id]-1))
		}
	}
}

// reported hears that a status was committed.
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
	// It is of an earlier process, and came before what the present one has said.
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

// statusHash identifies a status whatever hub source and agent add for each
// other.
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
	if result != store.OverQuota {
		o.kept[fmt.Sprint(id, op.Tag, op.Sequence)] = true
	}
	changed := before == nil != (after == nil) || before != nil && *before != *after
	o.deletedAfterLoss(op, after)
	if op.Kind == store.Drop && before != nil && o.w.hub.byID(id) == nil {
		// The hub does not have it any more, or the older store brought back what it
		// had deleted, and before it was deleted its cluster was released.
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

// acknowledged judges that a publisher was told of its success.
func (o *oracle) acknowledged(c *call, r transport.Receipt) {
	env, err := codec.ParseEnvelope(c.bytes)
	if err != nil || env.Type.Action == codec.ResyncRequest || env.Type.DataType != codec.ManifestBundles {
		return
	}
	if env.Type.Subresource == codec.Status && r.Outcome == codec.OutcomeIgnored {
		return // there was nothing that it is about, so there is nothing to keep
	}
	tag := codec.Tag{}
	if env.Type.Subresource == codec.Spec {
		tag = codec.TagOf(env.Deleting, env.Version, env.RawMetadata, env.Data)
	}
	if !o.kept[fmt.Sprint(env.ResourceID, tag, env.SequenceID)] {
		o.w.fail("I7", "%s of work %s was acknowledged (%s) and not committed", c.what, env.ResourceID, r.Outcome)
	}
}

// received judges what a party is sent.
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
		o.w.fail("I8", "%s was sent what is for cluster %s", to, env.Cluster)
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
			o.w.fail("I3", "%s was told that work %s is deleted, and it is not", env.Cluster, spec.ResourceID)
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

// newCluster makes a cluster whose every change is judged.
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
	judge := !o.w.others // somebody on the cluster may do what he likes
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
		// A work that has not got hold of a shared object yet makes it anew.
		if old.data["work"] != "" || slices.Contains(old.owners, w.name) && !o.w.ocmAgent.hasBefore(where, w.name, id) {
			o.w.fail("I3", "%s: %s was deleted, and work %s (%s) wants it", where, name, w.name, id)
		}
	}
}

// abandoned reports whether nobody has a work any more: neither the hub or the
// shop, nor the broker. After a release that is no reason to delete anything. So is
// one that was being deleted when a hub was restored that has it: its objects go,
// and are made anew.
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

// removedOrphan judges that an object was deleted whose work was Orphan when it
// was deleted: only an earlier spec that no longer has it may do that, or the word of
// a cluster that was replaced, that it is gone: a grave has no delete options.
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
	r, err := o.w.broker.gate.Get(context.Background(), store.Key{DataType: codec.ManifestBundles, Cluster: clusterName, ResourceID: id})
	if err != nil {
		return nil
	}
	return &r
}
