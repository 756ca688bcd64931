package core

import (
	"testing"

	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/pkg/codec"
)

// Scenario:
//
//	t1: a broker does not know this source's cursor, so works published before may be in another store.
//	t2: the source writes the finalizer.
//	t3: the informer shows it.
//	t4: the answer arrives, or is lost.
//
// Result: at t4 it is known which leader added the finalizer. A deletion waits for an agent only if an earlier
// leader may have added it.
func TestCore_KnowsItsOwnFinalizer(t *testing.T) {
	const located = "150"
	for name, c := range map[string]struct {
		bare  string   // the resource version without the finalizer
		shown []string // resource versions with the finalizer that the informer shows before the answer
		err   error
		late  bool // the informer shows the finalizer after the answer
		held  bool
	}{
		"the answer is first":                       {bare: "140", late: true},
		"the informer is first":                     {bare: "140", shown: []string{"200"}},
		"the informer shows what came of it":        {bare: "140", shown: []string{"210"}},
		"the informer shows both":                   {bare: "140", shown: []string{"200", "210"}},
		"another put it there":                      {bare: "140", shown: []string{"200"}, err: errConflict(), held: true},
		"another put it there, shown late":          {bare: "140", err: errConflict(), late: true, held: true},
		"the answer is lost":                        {bare: "140", shown: []string{"200"}, err: errHubDown(), held: true},
		"the answer is lost, shown late":            {bare: "140", err: errHubDown(), late: true, held: true},
		"it is new, and the answer is lost":         {bare: "160", shown: []string{"200"}, err: errHubDown()},
		"it is new, the answer lost, shown late":    {bare: "160", err: errHubDown(), late: true},
		"it is new, and was changed at that moment": {bare: "160", shown: []string{"200"}, err: errConflict()},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, true)
			f.connect()
			f.done(nextOf[ReadHubPosition](f, HubQueue, Key{}), Result{Position: &codec.HubPosition{UID: "hub", ResourceVersion: located}})
			f.seen(newWork("w", 1, withoutFinalizer, version(c.bare)))
			e := next[AddFinalizer](f, BrokerQueue, "uid-w")
			for _, v := range c.shown {
				f.seen(newWork("w", 1, version(v)))
			}
			r := Result{Err: c.err}
			if c.err == nil {
				r.Work = newWork("w", 1, version("200"))
			}
			f.done(e, r)
			if c.late {
				f.seen(newWork("w", 1, version("200")))
			}
			f.now = f.now.Add(longestSpec)
			f.seen(newWork("w", 1, deleting, version("300")))
			if p := next[Publish](f, BrokerQueue, "uid-w"); p.RequireConfirmation != c.held || p.Action != codec.DeleteRequest {
				t.Errorf("the deletion is %+v", p)
			}
		})
	}
}

// If the informer has shown the result of a write before the answer arrives, there is nothing to wait for.
func TestCore_QueriesNothingWhenTheInformerIsFaster(t *testing.T) {
	f := newFixture(t, true)
	f.connect()
	w := newWork("w", 1)
	f.seen(w)
	f.deliver(w.UID)
	f.core.Report(report(w, 1, applied(1)))
	e := next[PatchStatus](f, HubQueue, w.UID)
	answer := newWork("w", 1, version("200"), withStatus(e.Status))
	f.seen(newWork("w", 1, version("210"), withStatus(e.Status), func(w *workv1.ManifestWork) { w.Labels = map[string]string{"a": "b"} }))
	f.done(e, Result{Work: answer})
	f.now = f.now.Add(informerLag)
	f.idle(HubQueue, w.UID)
}
